"""Cost model: seconds of computing, serving and sending. Pure functions, a microsecond per call.

A batch's random factor depends only on (seed, worker, the worker's own count of batches), not on
other events.
"""

from __future__ import annotations

import functools

from gbactl.config.groups import CostConfig
from gbactl.hashes_and_random_numbers import exponential, key_of, lognormal, uniform

MESSAGE_BYTES = 120  # a frame's header, MAC and descriptor
BACKWARD_SHARE = 2 / 3  # share of a batch's time in which an all-reduce can be hidden
_US, _NS, _GBIT = 1e-6, 1e-9, 1e9 / 8
_COMPUTE = 2  # separates these random streams from those of the fault plan


class CostModel:
    """Costs of a virtual cluster's operations, in seconds."""

    def __init__(self, cfg: CostConfig, seed: int) -> None:
        self.cfg, self.seed = cfg, seed
        self._key = functools.cache(functools.partial(key_of, _COMPUTE, seed))  # of a worker
        self.server_message = cfg.server_message_us * _US
        self.restart = cfg.restart_us * _US
        self.coordinator_message = cfg.coordinator_message_us * _US
        self.local_latency, self.latency = cfg.local_latency_us * _US, cfg.latency_us * _US
        self.local_bandwidth, self.bandwidth = cfg.local_bandwidth_gbit * _GBIT, cfg.bandwidth_gbit * _GBIT

    def _scale(self, worker: int) -> float:
        scales = self.cfg.worker_scale
        return scales[worker % len(scales)] if scales else 1.0

    def factor(self, worker: int, number: int) -> float:
        """Random factor, of mean 1, of a batch's compute time; `number`: number of the batch on this worker."""
        scale = self.cfg.spread_scale
        if self.cfg.spread == "none" or scale == 0:
            return 1.0
        u = uniform(self._key(worker), number)
        if self.cfg.spread == "lognormal":
            return lognormal(u, scale)
        return 1.0 - scale + scale * exponential(u)

    def gradient(self, worker: int, number: int, samples: int) -> float:
        """Core time to compute a gradient of `samples` samples; `number`: number of the batch on its worker."""
        base = (self.cfg.batch_us + self.cfg.sample_us * samples) * _US
        return base * self._scale(worker) * self.factor(worker, number)

    def push(self, worker: int) -> float:
        """Core time within `gradient` that follows the model's backward pass: row sums, and writing the push."""
        return self.cfg.push_us * _US * self._scale(worker)

    def predict(self, worker: int, samples: int) -> float:
        """Core time to compute the predictions of an evaluation batch of `samples` samples."""
        return self.cfg.predict_us * _US * samples * self._scale(worker)

    def pull(self, rows: int, floats: int) -> float:
        """Server time to answer a pull of `rows` rows and `floats` dense values."""
        return (self.cfg.row_pull_ns * rows + self.cfg.dense_pull_ns * floats) * _NS

    def apply(self, rows: int, gradients: int, floats: int) -> float:
        """Server time of one step; `rows`: total number of rows in its gradients, `floats`: size of the dense slice."""
        dense = (self.cfg.dense_apply_ns * gradients + self.cfg.dense_step_ns) * floats
        return (self.cfg.row_apply_ns * rows + dense) * _NS

    def replica_step(self, floats: int) -> float:
        """Worker time to apply a step to its own copy of the dense vector of `floats` values."""
        return (self.cfg.dense_apply_ns + self.cfg.dense_step_ns) * floats * _NS

    def exchange(self, floats: int) -> float:
        """Trainer time for vector work in an exchange: one copy, difference and addition of the replica."""
        return 3 * self.cfg.dense_apply_ns * floats * _NS

    def elastic(self, floats: int) -> float:
        """Server time to send its slice of the EASGD centre and then update the slice."""
        return (self.cfg.dense_pull_ns + 2 * self.cfg.dense_apply_ns) * floats * _NS

    def ring_work(self, floats: int, workers: int) -> float:
        """Worker time for an all-reduce: waking up, copying, and its share of the ring's sums.

        On a core of its own that is little and hidden in the ring's time; workers that share cores do it in sequence.
        """
        if workers == 1:
            return 0.0
        messages = 2 * (workers - 1)
        fixed = self.cfg.allreduce_work_us + self.cfg.allreduce_message_us * messages
        return fixed * _US + self.cfg.allreduce_float_ns * messages / workers * floats * _NS

    def ring(self, nbytes: int, workers: int, hosts: int) -> float:
        """Network time of a ring all-reduce of `nbytes`: each of n workers sends 2 (n - 1) messages of nbytes / n."""
        if workers == 1:
            return 0.0
        latency = self.local_latency if hosts == 1 else self.latency
        return 2 * (workers - 1) * latency + self.sending(nbytes, workers, hosts)

    def sending(self, nbytes: int, workers: int, hosts: int) -> float:
        """Time that a rank needs to transmit all its bytes of a ring all-reduce to the next rank."""
        return 2 * (workers - 1) * nbytes / workers / (self.local_bandwidth if hosts == 1 else self.bandwidth)

    def agreement(self, workers: int, hosts: int, buckets: int) -> float:
        """Extra time in which ranks agree on the buckets to sum; within one host it is part of `allreduce_us`.

        Horovod sums two bit vectors in a ring before each bucket, and a bucket waits while those of others are in
        progress: 7.6 and 11.9 times the latency were measured for one and two small buckets of two ranks 5 ms apart."""
        further = self.latency - self.local_latency
        if hosts == 1 or further <= 0:
            return 0.0
        return self.cfg.allreduce_rounds * buckets * 2 * (workers - 1) * further

    def all_reduce(self, nbytes: int, workers: int, hosts: int, compute: float, agreed: int = 0) -> float:
        """Time of an all-reduce after `compute` seconds, from the last worker's arrival to the sum.

        `agreed`: number of its buckets that ranks have to agree on first."""
        if workers == 1:
            return 0.0
        ring = self.ring(nbytes, workers, hosts) + self.agreement(workers, hosts, agreed)
        hidden = min(self.cfg.overlap * ring, BACKWARD_SHARE * compute)
        return self.cfg.allreduce_us * _US + ring - hidden
