"""What holds for all tests: behaviour is tested, not time, so a slow machine fails no property."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("gbactl", deadline=None)
settings.load_profile("gbactl")
