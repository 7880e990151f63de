"""Validation of a run's configuration: the rules between its fields, and its construction from plain containers.

The error of each rule says what to type."""

from __future__ import annotations

from typing import Any

from gbactl.checked_dataclasses import build
from gbactl.conf_catalogue import entries, option_files
from gbactl.config.engine_interface import engine_named
from gbactl.config.groups import WITH_OPTIONS, ClusterConfig, own_keys
from gbactl.config.run_config import RunConfig, error_prefix
from gbactl.errors import ConfigError, require
from gbactl.models import ModelConfig
from gbactl.policies.dry_run import dry_run
from gbactl.switching.auto_controller import MODES
from gbactl.switching.switch_schedule import name

LEAST_PATIENCE = 0.1  # seconds: four heartbeats fit into it (coordinator/membership.py)


def _check_batches(cfg: RunConfig) -> None:
    total, workers, local = cfg.train.global_batch, cfg.cluster.workers, cfg.mode.local_batch
    if local is None:
        require(
            total % workers == 0,
            f"train.global_batch={total} cannot be shared by cluster.workers={workers}; type "
            f"train.global_batch={-(-total // workers) * workers} or set mode.local_batch.",
        )
        return
    require(
        total % local == 0,
        f"train.global_batch={total} is not a multiple of mode.local_batch={local}; type "
        f"train.global_batch={-(-total // local) * local}.",
    )
    if cfg.mode.policy.in_step:
        require(
            total == local * workers,
            f"mode={cfg.mode.name} needs train.global_batch = mode.local_batch x cluster.workers = {local * workers}, "
            f"not {total}; leave mode.local_batch out or type train.global_batch={local * workers}.",
        )


def check_switch(cfg: RunConfig, to: RunConfig) -> None:
    """Raise ConfigError unless a run with the configuration `cfg` can switch to the configuration `to`."""
    _check_mode(to)
    require(
        to.mode.sparse_divisor == cfg.mode.sparse_divisor,
        f"A switch keeps mode.sparse_divisor; add sparse_divisor: {cfg.mode.sparse_divisor} to the keys that it sets.",
    )


def switched_config(cfg: RunConfig, now: RunConfig, mode: Any) -> RunConfig:
    """Build the configuration that a run has after a requested switch. Raises ConfigError if it is invalid.

    `cfg`: the run's configuration; `now`: its current one; `mode`: the keys of the requested mode."""
    if not isinstance(mode, dict):
        raise ConfigError("A switch needs a mode; type --to MODE.")
    to = now.in_mode({str(key): value for key, value in mode.items()})
    check_switch(cfg, to)
    try_policy(to)
    return to


def try_policy(cfg: RunConfig) -> None:
    """Try the mode's policy on some batches if it is a user's own. Raises ConfigError if it breaks the contract."""
    kind, batch = cfg.mode.policy, cfg.train.global_batch
    if not kind.__module__.startswith("gbactl."):
        dry_run(kind, cfg.policy_options(), cfg.cluster.workers, cfg.local_batch, batch, cfg.mode.prefetch)


def switch_obstacle(cfg: RunConfig, to: RunConfig) -> str:
    """Describe why a run that was started with `cfg` cannot switch to `to`; "" if it can."""
    if (to.home == "workers" and to.home not in cfg.homes) or (to.collective_now and not cfg.collects):
        return (
            f"this run was not started for mode={to.mode.name}, whose workers need an all-reduce; type "
            "switch.prepare=all when starting one"
        )
    if to.cluster.workers > cfg.processes:
        return f"this run was started with {cfg.processes} workers; type --set workers={cfg.processes} or less"
    if to.row_staleness == "row" and cfg.row_staleness != "row":
        return "this run was not started with mode.row_staleness=row, which has to be counted from the start"
    return ""


def _check_switches(cfg: RunConfig) -> None:
    switch = cfg.switch
    for number, phase in enumerate(cfg.phases[1:]):
        with error_prefix(name(number)):
            check_switch(cfg, phase)
    if switch.name == "auto":
        _check_auto(cfg)


def _check_auto(cfg: RunConfig) -> None:
    switch = cfg.switch
    require(
        cfg.mode.name in MODES,
        f"switch=auto chooses between {' and '.join(MODES)}; type mode= one of these, not mode={cfg.mode.name}.",
    )
    require(not switch.schedule, "switch=auto follows no schedule; leave switch.schedule out, or type switch=none.")
    require(
        "workers" not in (switch.changes or {}),
        "switch=auto keeps the number of workers; leave workers out of switch.changes.",
    )
    candidates = cfg.candidates.values()
    with error_prefix("switch=auto"):
        for candidate in candidates:
            check_switch(cfg, candidate)


def _check_place(cfg: RunConfig) -> None:
    cfg.engine.options(cfg.cluster)
    cfg.engine.check(cfg.cluster, cfg.processes)
    require(
        cfg.engine.one_host or cfg.collective.name == "horovod",
        f"collective={cfg.collective.name} works within one host; with cluster={cfg.cluster.name} type "
        "collective=horovod.",
    )


def _check_mode(cfg: RunConfig) -> None:
    cfg.policy_options().check_workers(cfg.cluster.workers)
    _check_batches(cfg)


def check_transport(cfg: RunConfig) -> None:
    """Raise ConfigError if TLS would not cover everything that the run sends."""
    ring = cfg.collects and cfg.collective.name in ("horovod", "gloo") and not cfg.engine.one_host
    require(
        not (cfg.transport.encrypt and ring),
        f"transport.encrypt=true does not reach the all-reduce of collective={cfg.collective.name} between hosts, "
        "which nothing encrypts; type a mode without one (gba), or transport.encrypt=false on a network you trust.",
    )


def _check_model(cfg: ModelConfig) -> None:
    """Check that a built-in model exists and has all given keys. Raises ConfigError.

    Values of options, and the keys of other models, are checked where a model is built: its class knows them."""
    if cfg.target is not None:
        return
    files = option_files("model")
    require(cfg.name in files, f"model={cfg.name} is not known; type model= one of: {', '.join(files)}.")
    if cfg.options:
        unknown = [key for key in cfg.options if key not in (known := entries(files[cfg.name]))]
        require(not unknown, f"model has no key {', '.join(unknown)}; keys are: {', '.join(known)}.")


def check(cfg: RunConfig) -> RunConfig:
    """Check the rules that span several fields. Raises ConfigError, one sentence that says what to type."""
    require(
        cfg.cluster.hang_seconds >= LEAST_PATIENCE or not cfg.engine.real,
        f"cluster.hang_seconds={cfg.cluster.hang_seconds:g} is too short to tell a process that hangs from one that "
        f"is busy; type cluster.hang_seconds={LEAST_PATIENCE} or more.",
    )
    _check_model(cfg.model)
    require(
        cfg.cluster.dense_holders <= cfg.cluster.servers,
        f"cluster.dense_servers={cfg.cluster.dense_servers} cannot be among cluster.servers={cfg.cluster.servers}; "
        f"type 1 to {cfg.cluster.servers}, or null for all.",
    )
    schedule = cfg.optim.schedule
    require(
        schedule.name != "cosine" or schedule.total > schedule.warmup,
        "optim.schedule.name=cosine ends at optim.schedule.total global batches; type a total above the warm-up.",
    )
    _check_mode(cfg)
    _check_place(cfg)
    _check_switches(cfg)
    require(
        not cfg.fault_plan().hogs or cfg.engine.here,
        f"A fault of kind hog takes this machine's CPU, and cluster={cfg.cluster.name} does not train on it; type "
        "cluster=local, or faults.plans with another kind.",
    )
    require(
        cfg.checkpoint.interval_seconds is None or cfg.checkpoint.interval_steps is None,
        "checkpoint.interval_seconds and checkpoint.interval_steps exclude each other; set one of them to null.",
    )
    check_transport(cfg)
    cfg.cost.check()
    return cfg


def from_dict(values: dict[str, Any]) -> RunConfig:
    """Build a run's configuration from plain containers and check it. Raises ConfigError.

    Keys that are specific to the mode or the engine move to the key `options` of their group. The engine fills in
    values that it can determine, such as the number of workers and the hosts."""
    groups = {group: values[group] for group in WITH_OPTIONS if isinstance(values.get(group), dict)}
    found = {group: own_keys(WITH_OPTIONS[group], given) for group, given in groups.items()}
    if cluster := found.get("cluster"):
        cluster |= engine_named(str(cluster.get("name", ClusterConfig.name))).defaults(cluster)
    return check(build(RunConfig, {**values, **found}, ""))
