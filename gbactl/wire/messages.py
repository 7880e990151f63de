"""Messages of the cluster: named tuples encoded with msgpack and checked field by field when decoded.

Decoding costs about 3 us. Payloads (raw tensors) travel beside a message, which holds their sizes.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Iterable
from typing import Any, NamedTuple

import msgpack

from gbactl.errors import WireError
from gbactl.wire.frames import Frame


class Hello(NamedTuple):
    """To the coordinator: introduction of a node; `address` is where it listens, if it does."""

    role: str
    number: int
    address: str
    pid: int


class ShardAddresses(NamedTuple):
    """To a worker: the servers' addresses, in shard order."""

    servers: list[str]


class InstallDense(NamedTuple):
    """To a server: the dense layout and its initial dense slice, payload float32."""

    params: int
    buffers: int


class Ready(NamedTuple):
    """To the coordinator: readiness of a node to take work."""

    role: str
    number: int


class BeginPhase(NamedTuple):
    """Start of a phase (training or evaluation); `number` stands in every later message of it.

    It covers `samples` of the split from `first_sample` on; batches and their samples are numbered from there. A
    non-empty `ranges` (see checkpoint/sample_ranges.py) replaces that interval."""

    number: int
    training: bool
    mode: str
    split: int
    epoch: int
    samples: int
    local_batch: int
    first_step: int
    served_dense: bool
    prefetch_rows: bool
    first_sample: int = 0
    ranges: list[int] = []  # noqa: RUF012


class Abandon(NamedTuple):
    """To a worker: drop the batches of a phase that it has not begun, as no result of the phase is awaited any more."""

    phase: int


class MoveDense(NamedTuple):
    """To a worker, when nothing is in flight: move the dense parameters to `home`, which is "workers" or "servers".

    "workers": pull them from the servers. "servers": worker `giver` sends them there."""

    home: str
    giver: int
    turn: int


class DenseMoved(NamedTuple):
    """Answer to MoveDense, with its `turn`."""

    worker: int
    turn: int


class OpenReplicas(NamedTuple):
    """To a worker: workers 0 to `trainers` - 1 hold a dense replica each in the phase that begins.

    `rule` synchronises them, with the mode's own keys as `values` (see gbactl/replicas/), in the background if
    `shadow`."""

    turn: int
    rule: str
    shadow: bool
    trainers: int
    values: dict[str, Any]


class CloseReplicas(NamedTuple):
    """To a worker: the phase has no more data for its replica.

    It keeps answering exchanges until all trainers leave, then sends its replica to the servers and answers
    ClosedReplicas. If not `last`: batches of failed trainers may still come, so that it only keeps answering exchanges,
    and sends no answer."""

    turn: int
    last: bool = True


class ClosedReplicas(NamedTuple):
    """Answer to CloseReplicas: `notes` of the trainer's exchanges (see trainer/statistics.py)."""

    worker: int
    turn: int
    notes: dict[str, Any]


class EasgdUpdate(NamedTuple):
    """To a server: a replica's slice, payload float32. The EASGD centre moves `alpha` of the way towards it.

    The answer, Centre, has the centre before that."""

    ticket: int
    alpha: float


class EasgdCentre(NamedTuple):
    """Answer to Elastic: a server's slice of the centre before the exchange, payload float32."""

    ticket: int


class AddReplica(NamedTuple):
    """To a server: a trainer's slice and optimizer state after `step` steps, payload as DenseState's.

    Answered with Ack. Slices of one `turn` are summed until AverageReplicas; a later turn begins a new sum."""

    step: int
    turn: int


class AverageReplicas(NamedTuple):
    """To a server: replace its dense slice by the mean of the trainers' slices.

    This takes the mean moments, the largest step count and, if `value`, the mean parameters (else the centre's stay).
    """

    value: bool


class Summand(NamedTuple):
    """To the first server: a worker's summand of an all-reduce whose ring is broken. Payload float32[length].

    It is summand `part` of round `number` (from 1 in a `generation`) of the sum called `name`. With part -1 the worker
    only asks for the sum, without a payload. A round has `parts` summands, dealt to the live workers; 0: one of each of
    `ranks` but those `absent`. `after` > 0: the worker has sent all its summands so far, and the round's step is in the
    rows from that version on. Answered with Sum once the sum is complete."""

    generation: int
    name: str
    number: int
    length: int
    part: int
    parts: int
    ranks: int
    absent: list[int]
    after: int


class Sum(NamedTuple):
    """Sum of a round, payload float32[length]: a server's answer, or a result that a worker's ring still computed."""

    generation: int
    name: str
    number: int


class SummandsLost(NamedTuple):
    """To the coordinator, from the server that sums: summands that a step's dense gradient lacks."""

    step: int
    parts: list[int]


class RingBroken(NamedTuple):
    """Report of a broken all-reduce ring, which is not used any more.

    The server that sums sends it to the coordinator, which sends it to every worker."""


class GetDense(NamedTuple):
    """To a server: answer with DenseState."""


class ResetOptimizer(NamedTuple):
    """To a server: reset the optimizer's state and keep the parameters."""


class DenseState(NamedTuple):
    """Answer to GetDense: a shard's dense slice with its optimizer state, payload float32 (see DenseBlock.packed)."""

    step: int


class PutDense(NamedTuple):
    """To a server: replace its dense state by this payload (as DenseState); answered with Ack."""

    step: int


class TakeBatch(NamedTuple):
    """To the coordinator: request for a batch."""

    worker: int


class Granted(NamedTuple):
    """To a worker: a batch of a phase (see policies.Grant).

    `usual`: seconds that undisturbed workers take for such a batch, for a worker that the fault plan slows (0: not
    known)."""

    phase: int
    batch: int
    token: int
    start: int
    samples: int
    after: int
    divisor: float
    lr_scale: float
    usual: float = 0.0


class PrefetchHint(NamedTuple):
    """To a worker: its probable next batch, for which it may prepare data and ids.

    It pulls no rows before the batch is granted."""

    phase: int
    batch: int
    start: int
    samples: int


class Staged(NamedTuple):
    """To the coordinator: a server holds its slice of a gradient, with the worker's report on it (see Push).

    When every shard has sent this, the gradient is announced, which also counts as a Take."""

    shard: int
    worker: int
    phase: int
    batch: int
    loss: float
    seconds: float
    slowdown: float
    row_version: int
    dense_version: int
    rows: int = 0  # in its slice; ~rows where that went to a failed server


class Predictions(NamedTuple):
    """Click probabilities of an evaluation batch; payload float32[samples]."""

    phase: int
    worker: int
    batch: int
    start: int
    samples: int


class OrderStep(NamedTuple):
    """To a server: apply these batches with these weights as this step (see store.Order)."""

    phase: int
    step: int
    batches: list[int]
    weights: list[float]
    divisor: float
    weight_sum: float
    lr_scale: float
    row_weights: list[float]
    row_counts: list[int]
    checksum: bool
    accepted: bool = False
    shares: list[float] = []  # noqa: RUF012


class StepChecksum(NamedTuple):
    """A server's checksum of what a step touched (see Shard.step_digest)."""

    shard: int
    step: int
    digest: str


class GradientNorms(NamedTuple):
    """Norms of a step's gradients (see Shard.gradient_norms): a shard's, or a worker's all-reduced one."""

    step: int
    square: float
    rows: list[float]


class DropSlice(NamedTuple):
    """To a server: discard its slice of a staged gradient."""

    phase: int
    batch: int


class Fence(NamedTuple):
    """To a server: reject all messages of a failed worker and discard its slices of these batches.

    Its successor has a later `epoch` than this."""

    worker: int
    phase: int
    batches: list[int]
    epoch: int = 0


class Fenced(NamedTuple):
    """Answer to Fence: the server rejects the worker from now on."""

    shard: int
    worker: int


class Barrier(NamedTuple):
    """To a server: answer `Reached` once `version` steps are applied."""

    version: int


class Reached(NamedTuple):
    """Answer to Barrier: the server has applied so many steps."""

    shard: int
    version: int


class Inspect(NamedTuple):
    """To a node: send a checksum of its parameters and its memory use.

    `what`: checksum, or dense (that of the dense parameters alone)."""

    what: str


class Inspected(NamedTuple):
    """Answer to Inspect: checksum, memory and counters of a node.

    `model_sum`: this node's summand, decimal, of a checksum that is equal for any sharding, or "". `refused`:
    rejections by reason."""

    node: str
    checksum: str
    model_sum: str
    bytes: dict[str, int]
    counters: dict[str, int]
    refused: dict[str, int] = {}  # noqa: RUF012


class Pull(NamedTuple):
    """To a server: request rows (payload int32[rows] local indexes) and, with `dense`, the dense slice.

    Served once the shard's version is at least `after`. The answer omits the dense slice if its version is still
    `have_dense` (-1: never)."""

    ticket: int
    batch: int
    rows: int
    dense: bool
    after: int
    have_dense: int


class Rows(NamedTuple):
    """Answer to Pull: payload float32[dense] (aligned: it is computed with in place), float32[rows, width]."""

    ticket: int
    version: int
    rows: int
    dense: int


class Push(NamedTuple):
    """To a server: its slice of a gradient. Payload int32[rows], float32[rows, width], float32[dense].

    For the coordinator: the `seconds` it took, `slowdown` of them by the fault plan, and the versions on this shard
    that it was computed from (-1: none). `rows` below 0: the slice, of ~rows rows, went to a failed server and is empty
    here."""

    phase: int
    batch: int
    rows: int
    dense: int
    loss: float
    seconds: float
    slowdown: float
    row_version: int
    dense_version: int


class Ack(NamedTuple):
    """Acknowledgement of a message."""

    phase: int
    batch: int


class Save(NamedTuple):
    """To a server: write the shard as it is at this step into the checkpoint folder `name`.

    `pace`: bytes a second (0: unlimited). `kind`: see Rhythm."""

    number: int
    step: int
    name: str
    kind: str
    dense: bool
    pace: float


class Saved(NamedTuple):
    """Answer to Save: size, rows and checksums of the file on disk, or `error`, the reason why there is none."""

    shard: int
    number: int
    bytes: int
    rows: int
    sums: dict[str, str]
    seconds: float
    error: str
    updates: int = 0  # row updates that were unsaved before and are in it, where rows are chosen
    finite: bool = True  # False: the error is that values are infinite or NaN


class SaveDense(NamedTuple):
    """To a worker: send the dense parameters after `step` steps of the job, or the current ones (0)."""

    number: int
    step: int


class SaveReplica(NamedTuple):
    """To a trainer: send its current replica with its optimizer state, without interrupting training."""

    number: int


class DenseSaved(NamedTuple):
    """Answer to SaveDense and SaveReplica: the dense state after `step` steps, payload float32 (see DenseBlock.packed).

    It has `params` parameters; -1: that step is past, or there is no state yet."""

    number: int
    step: int
    params: int


class WorkerFailed(NamedTuple):
    """To a worker, in `sync`: failure of another worker, which is not awaited any more."""

    worker: int


class NumberedMessage(NamedTuple):
    """Message of kind `kind` with a sequence number, for a connection that may lose it (see reliable.py).

    Its payload is the message's."""

    number: int
    kind: int
    descriptor: bytes


class Acknowledged(NamedTuple):
    """Acknowledgement of every numbered message below this number."""

    below: int


class CheckpointLoaded(NamedTuple):
    """To the coordinator: step of the checkpoint that a replacement server has loaded (-1: there was none).

    Also the answer to Reload."""

    shard: int
    step: int


class AdoptVersion(NamedTuple):
    """To a replacement server: continue at `version` steps, with the optimizer's state reset if `fresh`.

    Slices of the batches `lost` were announced and not applied, and are lost with the failed server."""

    version: int
    lost: list[int]
    fresh: bool


class ReloadCheckpoint(NamedTuple):
    """To a server, when nothing is in flight: go back to the checkpoint in folder `path` ("": to the beginning)."""

    path: str


class ShardRelocated(NamedTuple):
    """To a worker: new address of a shard after a server failure. The worker repeats its open requests there.

    Slices of `batches` ([phase, batch, phase, ...]) that were sent to the failed server are lost. Shard -1: every
    server has gone back to a checkpoint, and the worker's versions are invalid."""

    shard: int
    address: str
    epoch: int
    batches: list[int]


class Ping(NamedTuple):
    """Heartbeat request to a worker or a server, answered with Pong at once, also during a computation."""

    beat: int


class Pong(NamedTuple):
    """Heartbeat answer of the worker or server of that number."""

    worker: int
    beat: int


class Takeover(NamedTuple):
    """To a reconnected node: takeover of the run by a new coordinator, of a later `epoch`."""

    epoch: int


class ServerState(NamedTuple):
    """A server's answer to Revive: its version and phase. A `Staged` of every staged slice follows."""

    shard: int
    epoch: int
    version: int
    phase: int


class WorkerState(NamedTuple):
    """A worker's answer to Revive: its phase, the last batches granted to it, and those that it still holds.

    `granted`: phase, batch, ... `held`, neither pushed nor given back: phase, batch, whether to train on it, ..."""

    worker: int
    epoch: int
    phase: int
    granted: list[int]
    held: list[int]


class Event(NamedTuple):
    """To the launcher: an event to show, log or act on."""

    name: str
    fields: dict[str, Any]


class Stop(NamedTuple):
    """To a node: end in an orderly way."""

    reason: str


Message = (
    Hello | ShardAddresses | InstallDense | Ready | BeginPhase | TakeBatch | Granted | Staged
    | Predictions | OrderStep | Barrier
    | Reached | Inspect | Inspected | Pull | Rows | Push | Ack | Event | Stop | StepChecksum | GradientNorms | DropSlice
    | MoveDense | DenseMoved | GetDense | DenseState | PutDense | Fence | Fenced | Abandon | ResetOptimizer
    | Save | Saved | SaveDense | SaveReplica | DenseSaved
    | Ping | Pong | WorkerFailed | NumberedMessage | Acknowledged
    | OpenReplicas | CloseReplicas | ClosedReplicas | EasgdUpdate | EasgdCentre | AddReplica | AverageReplicas
    | Summand | Sum | SummandsLost
    | Takeover | ServerState | WorkerState
    | CheckpointLoaded | AdoptVersion | ReloadCheckpoint | ShardRelocated
    | RingBroken | PrefetchHint
)  # fmt: skip
MESSAGES: tuple[type[Any], ...] = typing.get_args(Message)
KIND: dict[type[Any], int] = {cls: number for number, cls in enumerate(MESSAGES, start=1)}


def _checker(annotation: Any) -> tuple[tuple[type, ...], type | None]:
    """Return (accepted types, type of elements or of a map's values, or None) of an annotation."""
    origin = typing.get_origin(annotation)
    if origin is types.UnionType:
        return tuple(typing.get_args(annotation)), None
    if origin is list:
        return (list,), typing.get_args(annotation)[0]
    if origin is dict:
        values = typing.get_args(annotation)[1]
        return (dict,), None if values is Any else values
    if origin is not None:
        return (origin,), None
    return ((float, int) if annotation is float else (annotation,)), None


_FIELDS: dict[type[Any], list[tuple[tuple[type, ...], type | None]]] = {
    cls: [_checker(t) for t in typing.get_type_hints(cls).values()] for cls in MESSAGES
}


class _Shape(NamedTuple):
    """Field types of a well-formed message, for the fast path of `unpack`."""

    exact: tuple[type, ...]
    numbers: tuple[int, ...]
    containers: tuple[int, ...]


def _shape(cls: type[Any]) -> _Shape:
    exact = tuple(accepted[0] for accepted, _ in _FIELDS[cls])
    numbers = tuple(i for i, kind in enumerate(exact) if kind is int)
    return _Shape(exact, numbers, tuple(i for i, kind in enumerate(exact) if kind in (list, dict)))


_SHAPES = [_shape(cls) for cls in MESSAGES]
BOUND = 1 << 62


def kind_of(message: Any) -> int:
    """Return the frame kind of a message."""
    return KIND[type(message)]


def pack(message: Any) -> bytes:
    """Encode a message as a frame's descriptor."""
    data: bytes = msgpack.packb(tuple(message), use_bin_type=True)
    return data


def unpack(kind: int, descriptor: bytes) -> Any:
    """Decode a message. Raises WireError for an unknown kind, a wrong number of fields or a wrong type."""
    if not 1 <= kind <= len(MESSAGES):
        raise WireError(f"A frame of unknown kind {kind} arrived.")
    cls = MESSAGES[kind - 1]
    try:
        values = msgpack.unpackb(descriptor, use_list=True, raw=False, strict_map_key=True)
    except Exception as error:  # msgpack raises several unrelated types on malformed input
        raise WireError(f"A {cls.__name__} message cannot be read ({type(error).__name__}).") from error
    fields, shape = _FIELDS[cls], _SHAPES[kind - 1]
    if not isinstance(values, list) or len(values) != len(fields):
        raise WireError(f"A {cls.__name__} message has {len(fields)} fields.")
    if tuple(map(type, values)) == shape.exact and all(-BOUND < values[i] < BOUND for i in shape.numbers):
        suspects: Iterable[int] = shape.containers
    else:
        suspects = range(len(fields))
    for i in suspects:
        _check(cls, values[i], *fields[i])
    return cls(*values)


def decode(frame: Frame) -> Any:
    """Return the message of a frame. Raises WireError as `unpack` does."""
    return unpack(frame.kind, frame.descriptor) if frame.message is None else frame.message


def _check(cls: type[Any], value: Any, accepted: tuple[type, ...], element: type | None) -> None:
    if type(value) not in accepted:
        raise WireError(f"A {cls.__name__} message has a field of type {type(value).__name__}.")
    if type(value) is dict and any(type(key) is not str for key in value):
        raise WireError(f"A {cls.__name__} message has a key that is no text.")
    elements = list(value.values()) if type(value) is dict else value
    if element is not None:
        allowed = (float, int) if element is float else (element,)
        if any(type(item) not in allowed for item in elements):
            raise WireError(f"A {cls.__name__} message has an element of a wrong type.")
    numbers = elements if element in (int, float) else (value,) if type(value) is int else ()
    if any(type(number) is int and not -BOUND < number < BOUND for number in numbers):
        raise WireError(f"A {cls.__name__} message has a number out of bounds.")
