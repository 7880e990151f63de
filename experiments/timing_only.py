"""Timing-only cell of a study: a virtual cluster without the model's arithmetic, in this process.

Times do not depend on values, so the rates are those of a training, which takes several times as long. The result
has no AUC. EPS here is the rate of a steady run, from the moment a quarter of the samples is done to the last hand-out:
the length of a run thus does not affect it, and a single trainer may have many more batches than each of 64. The tag
`batches` is the number of batches of each worker: the first day's data are repeated until there are as many.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import virtual_run  # a script in the same folder, not a package

from gbactl.config import RunConfig
from gbactl.data.dataset import Batch, Dataset, Split
from gbactl.simulation.simulated_run import ZeroComputeCluster

EVERY = 0.002  # virtual seconds between two samplings
STEADY = 0.25  # share of the samples before the steady part
OF_REPLICAS = ("trainers", "elp", "sync_gap", "exchanges", "exchange_ms", "foreground_seconds", "bytes_exchanged")


@dataclass(frozen=True)
class Again(Split):
    """Split that repeats the rows of `whole` until there are `samples`."""

    samples: int = 0

    @property
    def rows(self) -> int:
        """Number of samples, with the repeated ones."""
        return self.samples

    def slice(self, lo: int, hi: int) -> Batch:
        """Return a range as a batch; one that would cross the end of `whole` starts at its beginning instead."""
        size = hi - lo
        first = lo % len(self.whole)
        first = first if first + size <= len(self.whole) else 0
        return super(Again, replace(self, samples=len(self.whole))).slice(first, first + size)


def repeated(dataset: Dataset, samples: int) -> Dataset:
    """Copy of the data set whose first day is repeated to `samples` rows."""
    first = dataset.splits[0]
    return replace(dataset, splits=(Again(first.name, first.whole, samples), *dataset.splits[1:]))


class Watch:
    """Sampler of a cluster during its first phase: samples done, and busy time of each server's interface."""

    def __init__(self, cluster: ZeroComputeCluster) -> None:
        self.cluster = cluster
        self.looks: list[tuple[float, int, list[float]]] = []
        self._training: Any = None
        cluster.events.schedule_after(EVERY, self._look)

    def _look(self) -> None:
        now, training = self.cluster.events.now, self.cluster.coordinator.context.training
        if self._training is not None and training is not self._training:
            return
        if training is not None:
            self._training = training
            self.looks.append((now, training.policy.ledger.finished, [self._busy(server) for server in self._hosts]))
        self.cluster.events.schedule_after(EVERY, self._look)

    @property
    def _hosts(self) -> list[Any]:
        return [server.host for server in self.cluster.servers]

    def _busy(self, host: Any) -> float:
        """Seconds so far in which bytes came in, without waiting times."""
        return float(host.inward.busy_seconds)

    def told(self) -> dict[str, Any]:
        """Samples a second, and busy shares of the first server's interface and of the others', for incoming bytes.

        Raises ValueError for a run that is too short.
        """
        training = self._training
        until = 0.0 if training is None else training.clock.last
        steady = [
            look for look in self.looks
            if look[1] >= STEADY * training.policy.phase.samples and look[0] <= until
        ]  # fmt: skip
        if len(steady) < 2:
            raise ValueError("This run is too short to tell its rate; give it more samples.")
        first, last = steady[0], steady[-1]
        seconds = last[0] - first[0]
        shares = [(after - before) / seconds for before, after in zip(first[2], last[2], strict=True)]
        others = max(shares[1:], default=None)
        return {"eps": (last[1] - first[1]) / seconds, "busy": {"S0": shares[0], "others": others}, "steady": seconds}


def times(cfg: RunConfig, dataset: Dataset, folder: Path) -> dict[str, Any]:
    """Timing results of a training of `cfg`; its event log is left in `folder`. Raises GbactlError."""
    cluster = ZeroComputeCluster(cfg, dataset, folder)
    watch = Watch(cluster)
    result = cluster.run()
    replicas = result.get("replicas", {})
    own = {key: replicas[key] for key in OF_REPLICAS if key in replicas}
    told = {**watch.told(), "phase_eps": result["eps"], "samples": result["samples"]}
    return {**told, **({"replicas": own} if own else {})}


def run(overrides: Sequence[str], folder: Path) -> dict[str, Any]:
    """Run a cell; return its result."""
    import torch

    torch.set_num_threads(1)
    cfg, dataset = virtual_run.begun(overrides, folder)
    batches = int(cfg.tracking.tags.get("batches", "0"))
    if batches:
        dataset = repeated(dataset, batches * cfg.cluster.workers * cfg.local_batch)
    return times(cfg, dataset, folder)
