"""Readers of click-log formats, one module each: the options of a data source, and how its files become arrays."""

from __future__ import annotations
