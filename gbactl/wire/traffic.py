"""What a node sends while the run trains, in bytes, by what it is; evaluations are not counted.

`dense`: dense parameters, gradients and whole states of them; `rows`: embedding rows and their gradients; `ids`: which
rows; `control`: headers and descriptors of all messages; `other`: what is none of these. What lies in shared memory is
counted apart. TLS, TCP and IP come on top. Costs 1 us a message.

An all-reduce of n values in a ring (Horovod, Gloo, that of a virtual cluster) is `dense`: 4 n x 2 (W - 1) / W
bytes (half of that with fp16 on the wire) from each of the W ranks that it has then. That is reckoned, not measured,
and leaves out what Horovod sends to agree on what is summed next. One in shared memory is counted there: the 4 n bytes
that a rank writes, for collective=shm or beside a ring that may break. Where a server sums instead, messages carry it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from gbactl.wire.messages import (
    Centre,
    DenseSaved,
    DenseState,
    Elastic,
    GiveReplica,
    Install,
    Pull,
    Push,
    PutDense,
    Rows,
    Sum,
    SumPart,
)

KINDS = ("dense", "rows", "ids", "control", "other")
SHARED = "shared"
PREFIX = "sent "  # of what a node tells of it among its counters
_DENSE = frozenset((Centre, DenseSaved, DenseState, Elastic, GiveReplica, Install, PutDense, Sum, SumPart))


class Traffic:
    """`item`: bytes of a value that may be narrowed; `training`: whether what is sent now counts."""

    def __init__(self) -> None:
        self.item, self.training = 4, False
        self._sent = dict.fromkeys((*KINDS, SHARED), 0)

    def sent(self, message: Any, head: int, payload: int, shared: bool = False) -> None:
        """A message goes: so many bytes of header and descriptor, and of payload, on the wire or in shared memory."""
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

    def summed(self, nbytes: int, shared: bool) -> None:
        """This rank's part of an all-reduce. Those are of training alone, and the last may end when that is over."""
        self._sent[SHARED if shared else "dense"] += nbytes

    def counters(self) -> dict[str, int]:
        """For Inspected."""
        return {f"{PREFIX}{kind}": count for kind, count in self._sent.items() if count}


def summary(nodes: Sequence[Mapping[str, int]], steps: int) -> dict[str, Any]:
    """`wire` of result.json: bytes by kind of all nodes together, each also a step; `shared_memory` beside them."""
    total: Counter[str] = Counter()
    for counters in nodes:
        total.update({kind: counters.get(f"{PREFIX}{kind}", 0) for kind in (*KINDS, SHARED)})
    sent = {kind: total[kind] for kind in KINDS}
    return {
        "bytes": sent,
        "bytes_per_step": {kind: count / steps if steps else 0.0 for kind, count in sent.items()},
        "shared_memory": total[SHARED],
    }
