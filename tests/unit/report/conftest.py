"""Makes the hand-made runs importable."""

from __future__ import annotations
