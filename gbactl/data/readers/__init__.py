"""Readers of click-log formats, one module each: options, fast parser, and explanation of an unreadable line."""

from __future__ import annotations
