"""Layout of a job, from its configuration and data: rounds, the servers' shards, shared memory, placement on hosts.

A round is a day with next-day evaluation, or an epoch with validation.

Workers fill the hosts' slots in the order of `cluster.hosts`, as Horovod's launcher numbers its ranks; servers are
spread over the hosts in turn, or packed on the first. The coordinator runs beside the launcher, never on this list.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from gbactl.config import RunConfig, TrainConfig
from gbactl.data.dataset import Dataset
from gbactl.errors import ConfigError
from gbactl.models import row_width
from gbactl.store.dense import Cut, dense_range
from gbactl.store.optimizers import MOMENTS, OptimizerSpec
from gbactl.store.shard import ShardSpec

SPREAD, PACKED = "spread", "packed"
PLACEMENTS = (SPREAD, PACKED)
_HOST = re.compile(r"(?!-)([\w.-]+):([0-9]{1,4})")  # Horovod's own pattern of a host and its slots; no option of ssh


@dataclass(frozen=True)
class Round:
    """Round of a run: train on one split, then evaluate on others. Early stopping uses the score on `judged_by`."""

    split: int
    epoch: int
    label: str
    evaluate: tuple[int, ...]
    judged_by: int


class Splits(Protocol):
    """Attributes of a Dataset from which the list of rounds is made."""

    @property
    def kind(self) -> str:
        """Kind of the dataset's splits: "days", "splits" (train, validation and test) or "parts"."""

    @property
    def splits(self) -> tuple[object, ...]:
        """Days or splits of the dataset."""


def rounds(dataset: Splits, train: TrainConfig) -> list[Round]:
    """List the rounds of a run. Raises ConfigError if a round would have no data for its evaluation."""
    if dataset.kind == "splits":
        return [Round(0, epoch, f"epoch {epoch}", (1, 2), 1) for epoch in range(train.epochs)]
    if train.epochs != 1:
        raise ConfigError("train.epochs is for data with a validation set; days are passed once: type train.epochs=1.")
    days = len(dataset.splits) - 1
    if days < 1:
        raise ConfigError("One day cannot be judged by the next; give two days or more, or type data.days=2.")
    if train.days is not None:
        if not 1 <= train.days <= days:
            raise ConfigError(f"train.days={train.days} is not possible with {days + 1} days; type 1 to {days}.")
        days = train.days
    judged_by = [len(dataset.splits) - 1 if dataset.kind == "parts" else day + 1 for day in range(days)]
    return [Round(day, 0, f"day {day}", (judge,), judge) for day, judge in enumerate(judged_by)]


def samples_of(dataset: Dataset, train: TrainConfig) -> int:
    """Number of training samples in all rounds of a run."""
    return sum(dataset.splits[part.split].rows for part in rounds(dataset, train))


def optimizer(cfg: RunConfig, lr: float, weight_decay: float) -> OptimizerSpec:
    """Return the specification of the configured optimizer with this learning rate and weight decay."""
    o = cfg.optim
    return OptimizerSpec(o.name, lr, (o.beta1, o.beta2), o.eps, weight_decay, o.initial_accumulator)


def shard_spec(cfg: RunConfig, rows: int, shard: int) -> ShardSpec:
    """Return the specification of a server's shard of a table with `rows` rows, without a dense slice."""
    row_lr = cfg.optim.lr if cfg.optim.row_lr is None else cfg.optim.row_lr
    return ShardSpec(
        shard, cfg.cluster.servers, rows, row_width(cfg.model), cfg.seed, cfg.model.init_scale,
        optimizer(cfg, row_lr, 0.0), cfg.optim.row_l2, cfg.optim.row_weight_decay,
        dense_optimizer=optimizer(cfg, cfg.optim.lr, cfg.optim.weight_decay),
        sparse_divisor=cfg.mode.sparse_divisor,
        row_staleness=cfg.row_staleness,
        dense_shards=cfg.cluster.dense_holders,
    )  # fmt: skip


def row_bytes(cfg: RunConfig) -> int:
    """Return the size of one row with its optimizer state in bytes, including Adam's count of the row's steps."""
    name = cfg.optim.name
    moments = 0 if name == "rowwise_adagrad" else len(MOMENTS[name])
    return row_width(cfg.model) * 4 * (1 + moments) + (4 if name in ("adam", "rowwise_adagrad") else 0)


def dense_cuts(cfg: RunConfig, size: int) -> list[Cut]:
    """Divide a dense vector of `size` values among the servers; returns each server's slice [low, high).

    Servers that hold rows alone have an empty one."""
    cluster = cfg.cluster
    return [dense_range(size, shard, cluster.dense_holders) for shard in range(cluster.servers)]


def segment_bytes(cfg: RunConfig, dataset: Dataset, dense: int) -> tuple[int, int]:
    """Compute the sizes of the shared-memory slots between one worker and one server.

    They are the largest push and the largest answer, in bytes; (0, 0) over TCP. The server holds `dense` values of the
    dense vector."""
    if cfg.cluster.transport != "shm":
        return 0, 0
    ids, width = dataset.ids_of_sample, row_width(cfg.model)
    # ids are spread by a modulo: only in unusual data a shard's slice exceeds twice its share; it then goes by wire
    share = 1.0 if cfg.cluster.servers == 1 else min(1.0, 2.0 / cfg.cluster.servers)
    local_batch = max(phase.local_batch for phase in cfg.possible)
    push = int(local_batch * ids * share) * 4 * (width + 1) + 4 * dense
    answer = int(max(local_batch, cfg.train.eval_batch) * ids * share) * 4 * width + 4 * dense
    return push, answer


@dataclass(frozen=True)
class Host:
    """Host with its name for ssh and its number of worker slots."""

    name: str
    slots: int


def hosts_of(given: Sequence[str]) -> tuple[Host, ...]:
    """Parse a list of hosts such as `["a:4", "b:2"]`. Raises ConfigError that says what to type."""
    if not given:
        raise ConfigError("No machines are named; type cluster.hosts='[a:4,b:4]', each with its worker slots.")
    found = []
    for text in given:
        match = _HOST.fullmatch(text.strip())
        if match is None:
            raise ConfigError(f"cluster.hosts has {text!r}, which is no NAME:SLOTS; type for instance a:4.")
        found.append(Host(match[1], int(match[2])))
    names = [host.name for host in found]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigError(f"cluster.hosts names {', '.join(twice)} twice; add up its slots.")
    return tuple(found)


def slots(hosts: Sequence[Host]) -> int:
    """Count the worker slots of all hosts."""
    return sum(host.slots for host in hosts)


def place(hosts: Sequence[Host], workers: int, servers: int, placement: str = SPREAD) -> dict[str, str]:
    """Choose the host of each worker and server; returns hosts by process name.

    Raises ConfigError where the slots do not suffice for the workers."""
    if placement not in PLACEMENTS:
        raise ConfigError(f"cluster.placement={placement} is not known; type one of: {', '.join(PLACEMENTS)}.")
    if workers > slots(hosts):
        raise ConfigError(
            f"cluster.workers={workers} do not fit into the {slots(hosts)} slots of cluster.hosts; give more slots, or "
            f"type cluster.workers={slots(hosts)}."
        )
    seats = [host.name for host in hosts for _ in range(host.slots)]
    found = {f"W{index}": seats[index] for index in range(workers)}
    for index in range(servers):
        found[f"S{index}"] = hosts[index % len(hosts) if placement == SPREAD else 0].name
    return found


def successor(process: str, placed: Mapping[str, str], hosts: Sequence[Host], live: Collection[str]) -> str | None:
    """Choose a host for a failed process's replacement: its own if live, else the least loaded live one, or None.

    Load: processes of the same kind, with the replacement; for workers, per slot."""
    if placed[process] in live:
        return placed[process]

    def load(host: Host) -> float:
        there = [p for p, name in placed.items() if name == host.name and p[0] == process[0] and p != process]
        return (len(there) + 1) / max(host.slots, 1) if process[0] == "W" else float(len(there))

    rest = [host for host in hosts if host.name in live]
    return min(rest, key=load).name if rest else None
