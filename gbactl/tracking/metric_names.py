"""Names of metrics in MLflow, in groups: train/, eval/, staleness/, wire/, recovery/, rounds/; five have none. Pure.

Within gbactl and in older runs a metric has a plain name, for a process or a round with a label: wire_shared_memory,
worker_batches/W0, auc/day 3. The MLflow UI draws one section for each group.
"""

from __future__ import annotations

import re

PLAIN = ("auc", "logloss", "loss", "eps")  # metrics without a group; the fifth one is the mean staleness
STALENESS = "staleness"
_ROUND = re.compile(r"(day|epoch) \d+")
_GROUPS = {  # families of a group; those that end in "_" are beginnings of families
    "train": (
        "samples", "samples_", "gradients_", "global_step", "wall_seconds", "virtual_seconds", "eps_now", "round_eps",
        "mode_id", "pause_ms", "auto_", "elp", "worker_", "progressive_auc",
    ),
    "eval": ("ne", "calibration", "gauc", "best_possible_auc", "train_", "validation_", "test_"),
    "staleness": ("token_staleness_", "sync_gap_", "replica_distance"),
    "wire": ("refused_frames", "exchanges", "exchange_ms", "foreground_seconds", "bytes_exchanged"),
    "recovery": ("checkpoint_", "fault_"),
}  # fmt: skip
_BEGINNINGS = ("staleness", "wire", "recovery")  # groups with families that begin with the group's name


def logged_name(metric: str) -> str:
    """Return the name in MLflow of a metric; one that is in no group keeps its name."""
    family, _, label = metric.partition("/")
    if _ROUND.fullmatch(label):
        return f"rounds/{family} {label}"
    if family == "staleness_mean" and not label:
        return STALENESS
    for group in _BEGINNINGS:
        if family.startswith(f"{group}_"):
            return _joined(group, family.removeprefix(f"{group}_"), label)
    for group, families in _GROUPS.items():
        if family in families or family.startswith(tuple(each for each in families if each[-1] == "_")):
            return _joined(group, family, label)
    return metric


def _joined(group: str, family: str, label: str) -> str:
    return f"{group}/{family} {label}".rstrip()


def plain_name(logged: str) -> str:
    """Return the plain name of a metric in MLflow; a plain name, as older runs have it, is returned unchanged."""
    if logged == STALENESS:
        return "staleness_mean"
    group, _, rest = logged.partition("/")
    if group not in (*_GROUPS, "rounds"):
        return logged
    family, _, label = rest.partition(" ")
    if group in _BEGINNINGS and not logged_name(family).startswith(f"{group}/"):
        family = f"{group}_{family}"
    return f"{family}/{label}" if label else family
