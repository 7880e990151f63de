"""Calibration: measure a machine, and fit the cost model with which a virtual cluster behaves like it."""
