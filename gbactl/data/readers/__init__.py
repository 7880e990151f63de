"""Readers of click-log formats, one module each, with its options, fast parse and explanation of a bad line."""

from __future__ import annotations
