"""Makes fault_plans importable from the tests beside it."""

from __future__ import annotations
