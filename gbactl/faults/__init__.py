"""Fault injection: the plan of slow-downs and failures, its execution, and the effects observed in a run.

A plan is configuration, seeded and pure, the same on every engine. Importing this package costs nothing.
"""

from __future__ import annotations
