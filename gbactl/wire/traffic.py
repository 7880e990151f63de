"""Counters of the bytes that a node sends during training, by kind; evaluations are not counted.

`dense`: dense parameters, gradients and whole states of them; `rows`: embedding rows and their gradients; `ids`: the
rows' ids; `control`: headers and descriptors of all messages; `other`: everything else. Payloads in shared memory are
counted apart. TLS, TCP and IP headers are not included. Costs 1 us a message.

An all-reduce of n values in a ring (Horovod, Gloo, that of a virtual cluster) counts as `dense`: 4 n x 2 (W - 1) / W
bytes (half of that with fp16 on the wire) from each of its W ranks. That is computed, not measured, and leaves out
Horovod's negotiation. One in shared memory counts there: the 4 n bytes that a rank writes, for collective=shm or beside
a ring that may break. Where a server sums instead, its messages are counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from gbactl.wire.messages import (
    AddReplica,
    DenseSaved,
    DenseState,
    EasgdCentre,
    EasgdUpdate,
    InstallDense,
    Pull,
    Push,
    PutDense,
    Rows,
    Sum,
    Summand,
)

KINDS = ("dense", "rows", "ids", "control", "other")
SHARED = "shared"
PREFIX = "sent "  # prefix of the traffic counters' names among a node's counters
_DENSE = frozenset((EasgdCentre, DenseSaved, DenseState, EasgdUpdate, AddReplica, InstallDense, PutDense, Sum, Summand))


class TrafficCounter:
    """Counter of the bytes that one node sends during training, by kind; `item`: bytes of a float on the wire."""

    def __init__(self) -> None:
        self.item, self.training = 4, False
        self._sent = dict.fromkeys((*KINDS, SHARED), 0)

    def sent(self, message: Any, head: int, payload: int, shared: bool = False) -> None:
        """Count a sent message: `head`: bytes of header and descriptor; `payload`: bytes on the wire or in a slot."""
        if not self.training:
            return
        tally = self._sent
        tally["control"] += head
        if shared:
            tally[SHARED] += payload
        elif payload:
            self._payload(tally, message, payload)

    def _payload(self, tally: dict[str, int], message: Any, payload: int) -> None:
        kind = type(message)
        if kind is Push:
            ids, dense = 4 * max(0, message.rows), self.item * message.dense
            tally["ids"] += ids
            tally["dense"] += dense
            tally["rows"] += payload - ids - dense
        elif kind is Rows:
            dense = self.item * message.dense
            tally["dense"] += dense
            tally["rows"] += payload - dense
        else:
            tally["ids" if kind is Pull else "dense" if kind in _DENSE else "other"] += payload

    def count_all_reduce(self, nbytes: int, shared: bool) -> None:
        """Count the bytes that this rank sent in an all-reduce, even if the last one ends when training is over."""
        self._sent[SHARED if shared else "dense"] += nbytes

    def counters(self) -> dict[str, int]:
        """Return the counters under the names that Inspected reports."""
        return {f"{PREFIX}{kind}": count for kind, count in self._sent.items() if count}


def summary(nodes: Sequence[Mapping[str, int]], steps: int) -> dict[str, Any]:
    """Build the entry `wire` of result.json: bytes by kind, in all and per step, over all nodes."""
    total: Counter[str] = Counter()
    for counters in nodes:
        total.update({kind: counters.get(f"{PREFIX}{kind}", 0) for kind in (*KINDS, SHARED)})
    sent = {kind: total[kind] for kind in KINDS}
    return {
        "bytes": sent,
        "bytes_per_step": {kind: count / steps if steps else 0.0 for kind, count in sent.items()},
        "shared_memory": total[SHARED],
    }
