"""What a coordinator tells that another one, which was killed, has told before. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gbactl.wire.messages import Event


def loss_known(event: Event, losses: Sequence[dict[str, Any]]) -> bool:
    """Whether it is a loss of a process, of the same epoch, that is among those told."""
    return event.name == "lost" and _among(event.fields, losses, "process", "epoch")


def switch_known(event: Event, switches: Sequence[dict[str, Any]]) -> bool:
    """Whether it is a switch, done, that is among those told; its pause does not count: only the first may know it."""
    done = event.name == "switch" and event.fields["state"] == "done"
    return done and _among(event.fields, switches, "step", "from", "to")


def _among(fields: dict[str, Any], told: Sequence[dict[str, Any]], *keys: str) -> bool:
    return any(all(fields.get(key) == old.get(key) for key in keys) for old in told)
