"""Which modes there are, by what their classes say: a test of all of them, or of all that are so, is one of a new mode
too."""

from __future__ import annotations

from typing import Any

from gbactl.policies.policy import names

EVERY = names()
SERVED = names(lambda mode: mode.home == "servers")
REPLICAS = names(lambda mode: mode.home == "replicas")
WITHOUT_REPLICAS = names(lambda mode: mode.home != "replicas")
CENTRED = names(lambda mode: mode.home == "replicas" and not mode.collective)
AVERAGED = names(lambda mode: mode.home == "replicas" and mode.collective)
FOREGROUND = names(lambda mode: mode.home == "replicas" and not getattr(mode, "shadow", False))


def every_k(mode: str, k: int = 3) -> dict[str, Any]:
    """The option of modes that exchange replicas in the foreground: once in `k` iterations."""
    return {"k": k} if mode in FOREGROUND else {}
