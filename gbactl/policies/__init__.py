"""Policies: which worker may take the next batch, and which gradients are applied when, with what weight.

Pure state machines: no I/O, no torch, no clock. A policy costs a few microseconds a decision.
To add a mode: a class here, or in any package, and a file conf/mode/NAME.yaml with the class as its `target`. A mode's
properties are attributes of its class (see policy.Policy); `names` lists the modes.
"""

from __future__ import annotations

from gbactl.policies.gba import GbaOptions
from gbactl.policies.hop_bs import HopBsOptions
from gbactl.policies.hop_bw import HopBwOptions
from gbactl.policies.policy import (
    Decision,
    Drop,
    Grant,
    Ledger,
    Member,
    Phase,
    Policy,
    PolicyOptions,
    Step,
    make,
    names,
)

__all__ = [
    "Decision", "Drop", "GbaOptions", "Grant", "HopBsOptions", "HopBwOptions", "Ledger", "Member", "Phase", "Policy",
    "PolicyOptions", "Step", "make", "names",
]  # fmt: skip
