"""Policies: who may take the next batch, what is applied when and with what weight.

Pure state machines: no I/O, no torch, no clock. A policy costs a few microseconds a decision.
To add a mode: one file here with a `@register("name")` class, one file in conf/mode/, one test.
"""

from __future__ import annotations

from gbactl.policies.base import Grant, Ledger, Member, Phase, Policy, PolicyOptions, Step, make, names
from gbactl.policies.gba import GbaOptions

__all__ = ["GbaOptions", "Grant", "Ledger", "Member", "Phase", "Policy", "PolicyOptions", "Step", "make", "names"]
