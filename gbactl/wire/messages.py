"""Messages of the cluster: named tuples encoded with msgpack; every field is checked when decoded.

Decoding costs about 1 us. Payloads (raw tensors) travel beside a message, which holds their sizes.
"""

from __future__ import annotations

import typing
from typing import Annotated, Any, NamedTuple

import msgpack
import msgspec

from gbactl.errors import WireError
from gbactl.wire.frames import Frame

Integer = Annotated[int, msgspec.Meta(gt=-(1 << 62), lt=1 << 62)]  # leaves room for arithmetic in 64 bits


class Hello(NamedTuple):
    """To the coordinator: introduction of a node; `address` is where it listens, if it does."""

    role: str
    number: Integer
    address: str
    pid: Integer


class ShardAddresses(NamedTuple):
    """To a worker: the servers' addresses, in shard order."""

    servers: list[str]


class InstallDense(NamedTuple):
    """To a server: the dense layout and its initial dense slice, payload float32."""

    params: Integer
    buffers: Integer


class Ready(NamedTuple):
    """To the coordinator: readiness of a node to take work."""

    role: str
    number: Integer


class BeginPhase(NamedTuple):
    """Start of a phase (training or evaluation); `number` stands in every later message of it.

    It covers `samples` of the split from `first_sample` on; batches and their samples are numbered from there. A
    non-empty `ranges` (see checkpoint/sample_ranges.py) replaces that interval."""

    number: Integer
    training: bool
    mode: str
    split: Integer
    epoch: Integer
    samples: Integer
    local_batch: Integer
    first_step: Integer
    served_dense: bool
    prefetch_rows: bool
    first_sample: Integer = 0
    ranges: list[Integer] = []  # noqa: RUF012


class Abandon(NamedTuple):
    """To a worker: drop the batches of a phase that it has not begun, as no result of the phase is awaited any more."""

    phase: Integer


class MoveDense(NamedTuple):
    """To a worker, when nothing is in flight: move the dense parameters to `home`, which is "workers" or "servers".

    "workers": pull them from the servers. "servers": worker `giver` sends them there."""

    home: str
    giver: Integer
    turn: Integer


class DenseMoved(NamedTuple):
    """Answer to MoveDense, with its `turn`."""

    worker: Integer
    turn: Integer


class OpenReplicas(NamedTuple):
    """To a worker: workers 0 to `trainers` - 1 hold a dense replica each in the phase that begins.

    `rule` synchronises them, with the mode's own keys as `values` (see gbactl/replicas/), in the background if
    `shadow`."""

    turn: Integer
    rule: str
    shadow: bool
    trainers: Integer
    values: dict[str, Any]


class CloseReplicas(NamedTuple):
    """To a worker: the phase has no more data for its replica.

    It keeps answering exchanges until all trainers leave, then sends its replica to the servers and answers
    ClosedReplicas. If not `last`: batches of failed trainers may still come, so that it only keeps answering exchanges,
    and sends no answer."""

    turn: Integer
    last: bool = True


class ClosedReplicas(NamedTuple):
    """Answer to CloseReplicas: `notes` of the trainer's exchanges (see ExchangeStatistics in trainer/replica.py)."""

    worker: Integer
    turn: Integer
    notes: dict[str, Any]


class EasgdUpdate(NamedTuple):
    """To a server: a replica's slice, payload float32. The EASGD centre moves `alpha` of the way towards it.

    The answer, EasgdCentre, has the centre before that."""

    ticket: Integer
    alpha: float


class EasgdCentre(NamedTuple):
    """Answer to EasgdUpdate: a server's slice of the centre before the exchange, payload float32."""

    ticket: Integer


class AddReplica(NamedTuple):
    """To a server: a trainer's slice and optimizer state after `step` steps, payload as DenseState's.

    Answered with Ack. Slices of one `turn` are summed until AverageReplicas; a later turn begins a new sum."""

    step: Integer
    turn: Integer


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

    generation: Integer
    name: str
    number: Integer
    length: Integer
    part: Integer
    parts: Integer
    ranks: Integer
    absent: list[Integer]
    after: Integer


class Sum(NamedTuple):
    """Sum of a round, payload float32[length]: a server's answer, or a result that a worker's ring still computed."""

    generation: Integer
    name: str
    number: Integer


class SummandsLost(NamedTuple):
    """To the coordinator, from the server that sums: summands that a step's dense gradient lacks."""

    step: Integer
    parts: list[Integer]


class RingBroken(NamedTuple):
    """Report of a broken all-reduce ring, which is not used any more.

    The server that sums sends it to the coordinator, which sends it to every worker."""


class GetDense(NamedTuple):
    """To a server: answer with DenseState."""


class ResetOptimizer(NamedTuple):
    """To a server: reset the optimizer's state and keep the parameters."""


class DenseState(NamedTuple):
    """Answer to GetDense: a shard's dense slice with its optimizer state, payload float32 (see DenseBlock.packed)."""

    step: Integer


class PutDense(NamedTuple):
    """To a server: replace its dense state by this payload (as DenseState); answered with Ack."""

    step: Integer


class TakeBatch(NamedTuple):
    """To the coordinator: request for a batch."""

    worker: Integer


class Granted(NamedTuple):
    """To a worker: a batch of a phase (see policies.Grant).

    `usual`: seconds that undisturbed workers take for such a batch, for a worker that the fault plan slows (0: not
    known)."""

    phase: Integer
    batch: Integer
    token: Integer
    start: Integer
    samples: Integer
    after: Integer
    divisor: float
    lr_scale: float
    usual: float = 0.0


class PrefetchHint(NamedTuple):
    """To a worker: its probable next batch, for which it may prepare data and ids.

    It pulls no rows before the batch is granted."""

    phase: Integer
    batch: Integer
    start: Integer
    samples: Integer


class Staged(NamedTuple):
    """To the coordinator: a server holds its slice of a gradient, with the worker's report on it (see Push).

    When every shard has sent this, the gradient is announced, which also counts as a TakeBatch."""

    shard: Integer
    worker: Integer
    phase: Integer
    batch: Integer
    loss: float
    seconds: float
    slowdown: float
    row_version: Integer
    dense_version: Integer
    rows: Integer = 0  # in its slice; ~rows where that went to a failed server


class Predictions(NamedTuple):
    """Click probabilities of an evaluation batch; payload float32[samples]."""

    phase: Integer
    worker: Integer
    batch: Integer
    start: Integer
    samples: Integer


class OrderStep(NamedTuple):
    """To a server: apply these batches with these weights as this step (see store.Order)."""

    phase: Integer
    step: Integer
    batches: list[Integer]
    weights: list[float]
    divisor: float
    weight_sum: float
    lr_scale: float
    row_weights: list[float]
    row_counts: list[Integer]
    checksum: bool
    accepted: bool = False
    shares: list[float] = []  # noqa: RUF012


class StepChecksum(NamedTuple):
    """A server's checksum of what a step touched (see Shard.step_digest)."""

    shard: Integer
    step: Integer
    digest: str


class GradientNorms(NamedTuple):
    """Norms of a step's gradients (see Shard.gradient_norms): a shard's, or a worker's all-reduced one."""

    step: Integer
    square: float
    rows: list[float]


class DropSlice(NamedTuple):
    """To a server: discard its slice of a staged gradient."""

    phase: Integer
    batch: Integer


class Fence(NamedTuple):
    """To a server: reject all messages of a failed worker and discard its slices of these batches.

    Its successor has a later `incarnation` than this."""

    worker: Integer
    phase: Integer
    batches: list[Integer]
    incarnation: Integer = 0


class Fenced(NamedTuple):
    """Answer to Fence: the server rejects the worker from now on."""

    shard: Integer
    worker: Integer


class Barrier(NamedTuple):
    """To a server: answer `Reached` once `version` steps are applied."""

    version: Integer


class Reached(NamedTuple):
    """Answer to Barrier: the server has applied so many steps."""

    shard: Integer
    version: Integer


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
    bytes: dict[str, Integer]
    counters: dict[str, Integer]
    refused: dict[str, Integer] = {}  # noqa: RUF012


class Pull(NamedTuple):
    """To a server: request rows (payload int32[rows] local indexes) and, with `dense`, the dense slice.

    Served once the shard's version is at least `after`. The answer omits the dense slice if its version is still
    `have_dense` (-1: never)."""

    ticket: Integer
    batch: Integer
    rows: Integer
    dense: bool
    after: Integer
    have_dense: Integer


class Rows(NamedTuple):
    """Answer to Pull: payload float32[dense] (aligned: it is computed with in place), float32[rows, width]."""

    ticket: Integer
    version: Integer
    rows: Integer
    dense: Integer


class Push(NamedTuple):
    """To a server: its slice of a gradient. Payload int32[rows], float32[rows, width], float32[dense].

    For the coordinator: the `seconds` it took, `slowdown` of them by the fault plan, and the versions on this shard
    that it was computed from (-1: none). `rows` below 0: the slice, of ~rows rows, went to a failed server and is empty
    here."""

    phase: Integer
    batch: Integer
    rows: Integer
    dense: Integer
    loss: float
    seconds: float
    slowdown: float
    row_version: Integer
    dense_version: Integer


class Ack(NamedTuple):
    """Acknowledgement of a message."""

    phase: Integer
    batch: Integer


class Save(NamedTuple):
    """To a server: write the shard as it is at this step into the checkpoint folder `name`.

    `pace`: bytes a second (0: unlimited). `kind`: see Rhythm."""

    number: Integer
    step: Integer
    name: str
    kind: str
    dense: bool
    pace: float


class Saved(NamedTuple):
    """Answer to Save: size, rows and checksums of the file on disk, or `error`, the reason why there is none."""

    shard: Integer
    number: Integer
    bytes: Integer
    rows: Integer
    sums: dict[str, str]
    seconds: float
    error: str
    updates: Integer = 0  # row updates that were unsaved before and are in it, where rows are chosen
    finite: bool = True  # False: the error is that values are infinite or NaN


class SaveDense(NamedTuple):
    """To a worker: send the dense parameters after `step` steps of the job, or the current ones (0)."""

    number: Integer
    step: Integer


class SaveReplica(NamedTuple):
    """To a trainer: send its current replica with its optimizer state, without interrupting training."""

    number: Integer


class DenseSaved(NamedTuple):
    """Answer to SaveDense and SaveReplica: the dense state after `step` steps, payload float32 (see DenseBlock.packed).

    It has `params` parameters; -1: that step is past, or there is no state yet."""

    number: Integer
    step: Integer
    params: Integer


class WorkerFailed(NamedTuple):
    """To a worker, in `sync`: failure of another worker, which is not awaited any more."""

    worker: Integer


class NumberedMessage(NamedTuple):
    """Message of kind `kind` with a sequence number, for a connection that may lose it (see reliable.py).

    Its payload is the message's."""

    number: Integer
    kind: Integer
    descriptor: bytes


class Acknowledged(NamedTuple):
    """Acknowledgement of every numbered message below this number."""

    below: Integer


class CheckpointLoaded(NamedTuple):
    """To the coordinator: step of the checkpoint that a replacement server has loaded (-1: there was none).

    Also the answer to ReloadCheckpoint."""

    shard: Integer
    step: Integer


class AdoptVersion(NamedTuple):
    """To a replacement server: continue at `version` steps, with the optimizer's state reset if `fresh`.

    Slices of the batches `lost` were announced and not applied, and are lost with the failed server."""

    version: Integer
    lost: list[Integer]
    fresh: bool


class ReloadCheckpoint(NamedTuple):
    """To a server, when nothing is in flight: go back to the checkpoint in folder `path` ("": to the beginning)."""

    path: str


class ShardRelocated(NamedTuple):
    """To a worker: new address of a shard after a server failure. The worker repeats its open requests there.

    Slices of `batches` ([phase, batch, phase, ...]) that were sent to the failed server are lost. Shard -1: every
    server has gone back to a checkpoint, and the worker's versions are invalid."""

    shard: Integer
    address: str
    incarnation: Integer
    batches: list[Integer]


class Ping(NamedTuple):
    """Heartbeat request to a worker or a server, answered with Pong at once, also during a computation."""

    beat: Integer


class Pong(NamedTuple):
    """Heartbeat answer of the worker or server of that number."""

    worker: Integer
    beat: Integer


class Takeover(NamedTuple):
    """To a reconnected node: takeover of the run by a new coordinator, of a later `term`."""

    term: Integer


class ServerState(NamedTuple):
    """A server's answer to Takeover: its version and phase. A `Staged` of every staged slice follows."""

    shard: Integer
    term: Integer
    version: Integer
    phase: Integer


class WorkerState(NamedTuple):
    """A worker's answer to Takeover: its phase, the last batches granted to it, and those that it still holds.

    `granted`: phase, batch, ... `held`, neither pushed nor given back: phase, batch, whether to train on it, ..."""

    worker: Integer
    term: Integer
    phase: Integer
    granted: list[Integer]
    held: list[Integer]


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


#: class, decoder and first byte (msgpack: an array of so many fields) of each kind of message
_DECODERS = [(cls, msgspec.msgpack.Decoder(cls), bytes([0x90 + len(cls._fields)])) for cls in MESSAGES]


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
    cls, decoder, first_byte = _DECODERS[kind - 1]
    if descriptor[:1] != first_byte:
        raise WireError(f"A {cls.__name__} message has {len(cls._fields)} fields.")
    try:
        return decoder.decode(descriptor)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise WireError(f"A {cls.__name__} message cannot be read ({error}).") from error


def decode(frame: Frame) -> Any:
    """Return the message of a frame. Raises WireError as `unpack` does."""
    return unpack(frame.kind, frame.descriptor) if frame.message is None else frame.message
