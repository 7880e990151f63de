"""What may be asked of a running job: the mode that is wished for, and why it may not be. Pure."""

from __future__ import annotations

from typing import Any

from gbactl.config import RunConfig, check_switch
from gbactl.errors import ConfigError


def wished(cfg: RunConfig, now: RunConfig, mode: Any) -> RunConfig:
    """The run `cfg`, which is `now`, in the mode whose keys `mode` are. Raises ConfigError where it cannot be."""
    if not isinstance(mode, dict):
        raise ConfigError("A switch needs a mode; type --to MODE.")
    to = now.in_mode({str(key): value for key, value in mode.items()})
    check_switch(cfg, to)
    return to


def obstacle(cfg: RunConfig, to: RunConfig) -> str:
    """Why a run that was started as `cfg` cannot go on as `to`; empty if it can."""
    if (to.home == "workers" and to.home not in cfg.homes) or (to.collective_now and not cfg.collects):
        return (
            f"this run was not started for mode={to.mode.name}, whose workers need an all-reduce; type "
            "switch.prepare=all when starting one"
        )
    if to.cluster.workers > cfg.processes:
        return f"this run was started with {cfg.processes} workers; type --set workers={cfg.processes} or less"
    rows = {getattr(phase.policy_options(), "row_staleness", "token") for phase in cfg.possible}
    if getattr(to.policy_options(), "row_staleness", "token") == "row" and "row" not in rows:
        return "this run was not started with mode.row_staleness=row, which has to be counted from the start"
    return ""
