"""Faults on purpose: which worker is slowed when and by how much (the plan), how, and what came of it.

A plan is configuration, seeded and pure, the same on every backend. Importing this package costs nothing.
"""

from __future__ import annotations
