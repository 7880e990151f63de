"""Measuring a machine, and the cost model with which a virtual cluster behaves like it."""
