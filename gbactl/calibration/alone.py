"""One worker by itself: what a gradient and a prediction cost, by batch size.

Counted is the time of this thread on a core, so a busy machine disturbs little. Takes `seconds`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import numpy as np

from gbactl.config import RunConfig
from gbactl.config.shards import dense_cuts
from gbactl.data.dataset import Dataset
from gbactl.kernels import load
from gbactl.kernels.library import flushed
from gbactl.models import build, row_width
from gbactl.simulation.batch import Item
from gbactl.simulation.compute import Compute
from gbactl.simulation.server import Answer
from gbactl.wire.messages import BeginPhase, Granted
from gbactl.worker.loop import DataSource

LEAST = 5  # of each batch size


class Alone:
    """A worker without a cluster, on the first split of the data."""

    def __init__(self, cfg: RunConfig, dataset: Dataset) -> None:
        from gbactl.models.compute import GradientComputer

        schema = dataset.schema
        self.dataset, self.servers = dataset, cfg.cluster.servers
        model = build(cfg.model, schema.numeric, schema.fields, cfg.seed)
        computer = GradientComputer(model, precision=cfg.precision)
        self.compute = Compute(computer, load(), row_width(cfg.model), dense_cuts(cfg, computer.flat.size), cfg.seed)
        self.source = DataSource(dataset, self.compute.kernels, self.servers, cfg.seed, False)
        self.phase = BeginPhase(1, True, cfg.mode.name, 0, 0, dataset.splits[0].rows, 1, 0, True, False)
        self.source.begin(self.phase)
        self._dense = np.empty(self.compute.flat.size, np.float32)
        self._random = np.random.default_rng(cfg.seed)
        self._scale = cfg.model.init_scale

    def item(self, number: int, samples: int) -> Item:
        """A batch with its distinct rows looked up."""
        start = number * samples % max(1, self.dataset.splits[0].rows - samples)
        grant = Granted(1, number, 0, start, samples, 0, 0.0, 0.0)
        item = Item(grant, self.phase, *self.source.prepare(grant))
        for shard, low, high in item.unique.shares():
            rows = self._random.uniform(-self._scale, self._scale, (high - low, self.compute.width))
            item.answers[shard] = Answer(0, b"", np.empty(0, np.uint8), None, None, rows.astype(np.float32))
        return item

    def gradient(self, number: int, samples: int) -> float:
        """Seconds for a batch: its distinct rows found, forward, backward, gradients copied out."""
        item = self.item(number, samples)
        began = time.thread_time()
        self.source.prepare(item.grant)
        self.compute.gradient(item)
        self.compute.flat.gradient_into(self._dense)
        return time.thread_time() - began

    def predict(self, number: int, samples: int) -> float:
        """Seconds for an evaluation batch."""
        item = self.item(number, samples)
        began = time.thread_time()
        self.source.prepare(item.grant)
        self.compute.predict(item)
        return time.thread_time() - began


def sizes(cfg: RunConfig, dataset: Dataset) -> list[int]:
    """Batch sizes around the configured one."""
    wanted = {max(1, round(cfg.local_batch * share)) for share in (0.25, 0.5, 1.0, 2.0)}
    return sorted(min(size, dataset.splits[0].rows) for size in wanted)


def line(points: dict[int, float]) -> tuple[float, float]:
    """(base, per sample) of the line through size -> seconds, relative errors least; none is negative."""
    from scipy.optimize import nnls  # type: ignore[import-untyped]

    counts, seconds = np.array(list(points), float), np.array(list(points.values()))
    (base, each), _ = nnls(np.stack([1 / seconds, counts / seconds], axis=1), np.ones(len(counts)))
    return float(base), float(each)


def measure(cfg: RunConfig, dataset: Dataset, seconds: float) -> dict[str, float]:
    """batch_us, sample_us and predict_us of the cost model."""
    import torch

    torch.set_num_threads(1)
    alone = Alone(cfg, dataset)
    with flushed():
        taken = _repeated(alone.gradient, sizes(cfg, dataset), 0.8 * seconds)
        evaluation = min(cfg.train.eval_batch, dataset.splits[0].rows)
        judged = _repeated(alone.predict, [evaluation], 0.2 * seconds)
    base, each = line(taken)
    return {"batch_us": 1e6 * base, "sample_us": 1e6 * each, "predict_us": 1e6 * judged[evaluation] / evaluation}


def _repeated(job: Callable[[int, int], float], counts: list[int], seconds: float) -> dict[int, float]:
    """Size -> median seconds, the sizes in turn until the time is over; the first round warms up."""
    found: dict[int, list[float]] = {count: [] for count in counts}
    until, number = time.monotonic() + seconds, 0
    while number <= LEAST or time.monotonic() < until:
        for count in counts:
            found[count].append(job(number, count))
        number += 1
    return {count: median(each[1:]) for count, each in found.items()}
