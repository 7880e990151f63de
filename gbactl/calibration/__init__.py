"""Calibration: measure this machine, and fit the cost model with which a simulated cluster behaves like it."""
