"""Conversion of a configuration to plain containers, and back."""

from __future__ import annotations

import dataclasses
from typing import Any

from gbactl.config.build import build, own_keys
from gbactl.config.groups import ClusterConfig, ModeConfig
from gbactl.config.place import place_of
from gbactl.config.rules import check
from gbactl.config.run import RunConfig

WITH_OPTIONS: dict[str, type[Any]] = {"mode": ModeConfig, "cluster": ClusterConfig}


def to_dict(cfg: RunConfig) -> dict[str, Any]:
    """Convert to plain containers, for the resolved file and for MLflow's params."""
    values = dataclasses.asdict(cfg)
    for group in WITH_OPTIONS:
        values[group].update(values[group].pop("options"))
    return values


def mode_values(cfg: RunConfig) -> dict[str, Any]:
    """Return all keys of the mode as in conf/mode/, and its number of workers."""
    return {**to_dict(cfg)["mode"], "workers": cfg.cluster.workers}


def from_dict(values: dict[str, Any]) -> RunConfig:
    """Build and check a run's configuration from plain containers. Raises ConfigError."""
    cfg: RunConfig = build(RunConfig, _with_workers(_with_options(values)), "")
    return check(cfg)


def _with_options(values: dict[str, Any]) -> dict[str, Any]:
    """Gather the mode's own keys, and the place's, under `options`."""
    found = {group: own_keys(kind, values[group]) for group, kind in WITH_OPTIONS.items() if _is_dict(values, group)}
    return {**values, **found}


def _is_dict(values: dict[str, Any], group: str) -> bool:
    return isinstance(values.get(group), dict)


def _with_workers(values: dict[str, Any]) -> dict[str, Any]:
    """Fill in the place's number of workers where none is given."""
    cluster = values.get("cluster")
    if not isinstance(cluster, dict) or cluster.get("workers", 0) is not None:
        return values
    place = place_of(str(cluster.get("name")))
    return {**values, "cluster": {**cluster, "workers": place.workers(cluster)}}


def flatten(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten {'a': {'b': 1}} to {'a.b': 1}."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        name = f"{prefix}{key}"
        flat.update(flatten(value, f"{name}.") if isinstance(value, dict) and value else {name: value})
    return flat
