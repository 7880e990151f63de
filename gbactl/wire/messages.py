"""Messages of the cluster: named tuples encoded with msgpack; every field is checked when decoded.

Decoding costs about 1 us. Payloads (raw tensors) travel beside a message, which holds their sizes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, NamedTuple

import msgspec
import numpy as np

from gbactl.errors import WireError
from gbactl.store.gradient_slice import StepOrder
from gbactl.wire.frames import Frame

#: what a worker waits for, or does, besides computing: the order of `Push.waits`
WAITS = ("batch", "rows", "turn", "push", "all_reduce")
Integer = Annotated[int, msgspec.Meta(gt=-(1 << 62), lt=1 << 62)]  # leaves room for arithmetic in 64 bits
Natural = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]


class Hello(NamedTuple):
    """To the coordinator: introduction of a node, with the `address` at which it listens ("": it does not listen)."""

    role: str
    number: Integer
    address: str


class ShardAddresses(NamedTuple):
    """To a worker: the servers' addresses, in shard order."""

    servers: list[str]


class InstallDense(NamedTuple):
    """To a server: the dense vector's layout and the server's initial slice, payload float32."""

    params: Integer
    buffers: Integer


class Ready(NamedTuple):
    """To the coordinator: the node has started and can process batches."""

    role: str
    number: Integer


class BeginPhase(NamedTuple):
    """Start of a training or evaluation phase; later messages of the phase carry its `number`.

    The phase covers `samples` of the split from `first_sample` on; batches and their samples are numbered from there.
    A non-empty `ranges` (see checkpoint/remaining_samples.py) replaces that interval."""

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
    """To a worker: discard the batches of a phase that it has not started to compute; their results are not needed."""

    phase: Integer


class MoveDense(NamedTuple):
    """To a worker, while no batch is in flight: move the dense parameters to `home`, "workers" or "servers".

    "workers": pull them from the servers. "servers": worker `giver` sends them there. `request` is its number."""

    home: str
    giver: Integer
    request: Integer


class DenseMoved(NamedTuple):
    """Answer to MoveDense: this worker has moved the dense parameters (the run's move number `request`)."""

    worker: Integer
    request: Integer


class OpenReplicas(NamedTuple):
    """To a worker: in the phase that starts now, each of the workers 0 to `trainers` - 1 holds a dense replica.

    `rule` synchronises them, with the mode's own keys as `values` (see gbactl/averaging_rules/), in the background if
    `shadow`."""

    request: Integer
    rule: str
    shadow: bool
    trainers: Integer
    values: dict[str, Any]


class CloseReplicas(NamedTuple):
    """To a worker: no more batches of the phase follow for the worker's replica.

    It keeps answering exchanges until all trainers leave, then sends its replica to the servers and answers
    ClosedReplicas. If not `last`: batches of failed trainers may still come, so that it only keeps answering exchanges,
    and sends no answer."""

    request: Integer
    last: bool = True


@dataclass
class ExchangeTotals:
    """Totals of trainers' exchanges in a phase. Times are in seconds, `foreground` those in which training waits.

    `iterations`: local ones. `sent`: bytes. `gaps`: counts of local iterations between two exchanges. `distances`:
    (seconds into the phase, L2 distance of the replica from the mean or centre)."""

    iterations: Natural = 0
    exchanges: Natural = 0
    seconds: float = 0.0
    foreground: float = 0.0
    sent: float = 0.0
    gaps: dict[Natural, Natural] = field(default_factory=dict)
    distances: list[tuple[float, float]] = field(default_factory=list)


class ClosedReplicas(NamedTuple):
    """Answer to CloseReplicas: the trainer's exchanges in the phase."""

    worker: Integer
    request: Integer
    totals: ExchangeTotals


class EasgdUpdate(NamedTuple):
    """To a server: a replica's slice, payload float32; moves the EASGD centre by the fraction `alpha` towards it.

    The answer, EasgdCentre, has the centre before it moved."""

    request: Integer
    alpha: float


class EasgdCentre(NamedTuple):
    """Answer to EasgdUpdate: the server's slice of the EASGD centre before that update, payload float32."""

    request: Integer


class AddReplica(NamedTuple):
    """To a server: a trainer's slice and optimizer state after `step` steps, payload as in DenseState.

    Answered with Ack. Slices of one `request` are summed until AverageReplicas; a later request begins a new sum."""

    step: Integer
    request: Integer


class AverageReplicas(NamedTuple):
    """To a server: take the mean moments and, if `value`, the mean parameters of the slices received with AddReplica.

    The largest step count is taken, too. Without `value` the centre's parameters stay."""

    value: bool


class Summand(NamedTuple):
    """To the first server: a worker's summand of an all-reduce whose ring is broken, payload float32[length].

    It is summand `part` of all-reduce round `number` (from 1 in a `generation`) of the sum called `name`. With part -1
    the worker only asks for the sum, without a payload. A round has `parts` summands, dealt to the live workers; 0: one
    of each of `ranks` but those `absent`. `after` > 0: the worker has sent all its summands so far, and the round's
    step is in the rows from that version on. Answered with Sum once the sum is complete."""

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
    """Result of one fallback all-reduce, float32[length], from the first server or from a worker that has it.

    A worker sends a result that its ring still computed."""

    generation: Integer
    name: str
    number: Integer


class SummandsLost(NamedTuple):
    """To the coordinator, from the summing server: indexes of the gradients missing from a step's dense sum."""

    step: Integer
    parts: list[Integer]


class RingBroken(NamedTuple):
    """Report that the all-reduce ring has failed; all later sums bypass it.

    The server that sums sends it to the coordinator, which sends it to every worker."""


class GetDense(NamedTuple):
    """To a server: request for its dense slice with the optimizer's state, answered with DenseState."""


class ResetOptimizer(NamedTuple):
    """To a server: reset the optimizer's state, but not the parameters."""


class DenseState(NamedTuple):
    """Answer to GetDense: a shard's dense slice with its optimizer state, payload float32 (see DenseBlock.packed)."""

    step: Integer


class PutDense(NamedTuple):
    """To a server: replace its dense slice and optimizer state by the payload (as in DenseState); answered with Ack."""

    step: Integer


class TakeBatch(NamedTuple):
    """To the coordinator: request for the next batch."""

    worker: Integer


class Granted(NamedTuple):
    """To a worker: grant of a batch of the phase (see policies.Grant).

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
    """To a worker: the batch that it will probably get next, to prepare data and ids.

    It pulls no rows before the batch is granted."""

    phase: Integer
    batch: Integer
    start: Integer
    samples: Integer


class Staged(NamedTuple):
    """To the coordinator: a server holds its slice of a gradient; with the worker's report on the gradient (see Push).

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
    rows: Integer = 0  # rows in the slice; ~rows if the slice went to a failed server
    won: float = 0.0
    pairs: Integer = 0
    waits: list[float] = []  # noqa: RUF012


class Predictions(NamedTuple):
    """Click probabilities of an evaluation batch; payload float32[samples]."""

    phase: Integer
    worker: Integer
    batch: Integer
    samples: Integer


class OrderStep(NamedTuple):
    """To a server: apply staged gradients of a phase as one step, and send the step's checksum if `checksum`."""

    phase: Integer
    order: StepOrder
    checksum: bool


class StepChecksum(NamedTuple):
    """To the coordinator: a server's checksum of the rows and dense values that a step changed (Shard.step_digest)."""

    shard: Integer
    step: Integer
    digest: str


class GradientNorms(NamedTuple):
    """To the coordinator: norms of a step's gradients on a shard, or of its all-reduced gradient."""

    step: Integer
    square: float
    rows: list[float]


class DropSlice(NamedTuple):
    """To a server: discard its slice of a staged gradient."""

    phase: Integer
    batch: Integer


class Fence(NamedTuple):
    """To a server: reject all messages of a failed worker and discard its slices of `batches`.

    The worker's successor has a later `incarnation` than this one."""

    worker: Integer
    phase: Integer
    batches: list[Integer]
    incarnation: Integer = 0


class Fenced(NamedTuple):
    """Answer to Fence: the server rejects the failed worker from now on."""

    shard: Integer
    worker: Integer


class Barrier(NamedTuple):
    """To a server: answer `Reached` once `version` steps are applied."""

    version: Integer


class Reached(NamedTuple):
    """Answer to Barrier: the server has applied `version` steps."""

    shard: Integer
    version: Integer


class Inspect(NamedTuple):
    """To a node: request for a checksum of its parameters and its memory use, answered with Inspected.

    `what`: checksum, or dense (that of the dense parameters alone)."""

    what: str


class Inspected(NamedTuple):
    """Answer to Inspect: checksum, memory and counters of a node.

    `model_sum`: this node's summand, decimal, of a checksum that is equal for any sharding, or "". `refused`:
    rejections by reason. `times`: a server's seconds of training by activity."""

    node: str
    checksum: str
    model_sum: str
    bytes: dict[str, Integer]
    counters: dict[str, Integer]
    refused: dict[str, Integer] = {}  # noqa: RUF012
    times: dict[str, float] = {}  # noqa: RUF012


class Pull(NamedTuple):
    """To a server: request rows (payload int32[rows] local indexes) and, with `dense`, the dense slice.

    Served once the shard's version is at least `after`. The answer omits the dense slice if its version is still
    `have_dense` (-1: never)."""

    request: Integer
    batch: Integer
    rows: Integer
    dense: bool
    after: Integer
    have_dense: Integer


class Rows(NamedTuple):
    """Answer to Pull: payload float32[dense], then float32[rows, width].

    The dense part is aligned, as it is computed with in place."""

    request: Integer
    version: Integer
    rows: Integer
    dense: Integer


class Push(NamedTuple):
    """To a server: its slice of a gradient, payload int32[rows], float32[rows, width], float32[dense].

    For the coordinator: the `seconds` that the gradient took, `slowdown` of them by the fault plan, the versions on
    this shard that it was computed from (-1: none), and of the batch's `pairs` of a click and another sample those
    that the model ranked right before (`won`, ties count a half). `waits`: the worker's seconds since its last push in
    each of WAITS. `rows` below 0: the slice, of ~rows rows, went to a failed server and is empty here."""

    phase: Integer
    batch: Integer
    rows: Integer
    dense: Integer
    loss: float
    seconds: float
    slowdown: float
    row_version: Integer
    dense_version: Integer
    won: float = 0.0
    pairs: Integer = 0
    waits: list[float] = []  # noqa: RUF012


class Ack(NamedTuple):
    """Acknowledgement of one message, such as PutDense or AddReplica."""


class Save(NamedTuple):
    """To a server: write the shard as of step `step` into the checkpoint folder `name`.

    `pace`: bytes a second (0: unlimited). `kind`: see SaveSchedule."""

    number: Integer
    step: Integer
    name: str
    kind: str
    dense: bool
    pace: float


class Saved(NamedTuple):
    """Answer to Save: size, rows and checksums of the written file, or the `error` that prevented it."""

    shard: Integer
    number: Integer
    bytes: Integer
    rows: Integer
    sums: dict[str, str]
    error: str
    updates: Integer = 0  # row updates that this save has made safe, where it saves chosen rows
    finite: bool = True  # False: `error` is that there are infinities or NaN


class SaveDense(NamedTuple):
    """To a worker: send the dense parameters after `step` steps of the job (0: the current ones) for a checkpoint."""

    number: Integer
    step: Integer


class SaveReplica(NamedTuple):
    """To a trainer: send its replica with its optimizer state for a checkpoint, without interrupting training."""

    number: Integer


class DenseSaved(NamedTuple):
    """Answer to SaveDense and SaveReplica: the dense state after `step` steps, payload as in DenseState.

    It has `params` parameters; -1: that step is past, or there is no state yet."""

    number: Integer
    step: Integer
    params: Integer


class WorkerFailed(NamedTuple):
    """To every worker: another worker has failed, so all-reduces, if there are any, no longer wait for it."""

    worker: Integer


class NumberedMessage(NamedTuple):
    """Message wrapped with a sequence number, for a connection that may lose messages (see reliable.py).

    `kind`, `descriptor` and the payload are those of the wrapped message."""

    number: Integer
    kind: Integer
    descriptor: bytes


class Acknowledged(NamedTuple):
    """Acknowledgement of every NumberedMessage with a number below `below`."""

    below: Integer


class CheckpointLoaded(NamedTuple):
    """To the coordinator: the step of the checkpoint that a replacement server has loaded (-1: none).

    Also the answer to ReloadCheckpoint."""

    shard: Integer
    step: Integer


class AdoptVersion(NamedTuple):
    """To a replacement server: continue as if `version` steps were applied; `fresh`: reset the optimizer's state.

    Slices of the batches `lost` were announced and not applied, and are lost with the failed server."""

    version: Integer
    lost: list[Integer]
    fresh: bool


class ReloadCheckpoint(NamedTuple):
    """To a server, while no batch is in flight: load the checkpoint in folder `path` ("": the initial values)."""

    path: str


class ShardRelocated(NamedTuple):
    """To a worker: new address of a shard after a server failure; the worker repeats unanswered requests there.

    Slices of `batches` (phase, batch) that were sent to the failed server are lost. Shard -1: every server has gone
    back to a checkpoint, and the worker's versions are invalid."""

    shard: Integer
    address: str
    incarnation: Integer
    batches: list[tuple[Integer, Integer]]


class Ping(NamedTuple):
    """Heartbeat request to a worker or server, which answers with Pong at once, even during a computation."""

    beat: Integer


class Pong(NamedTuple):
    """Heartbeat answer of a worker or server. `times`: a server's seconds of training by activity so far."""

    worker: Integer
    beat: Integer
    times: dict[str, float] = {}  # noqa: RUF012


class Takeover(NamedTuple):
    """To a reconnected node: a new coordinator, with a higher `term`, now controls the run."""

    term: Integer


class ServerState(NamedTuple):
    """Answer of a server to Takeover: its version and phase.

    A `Staged` of every staged slice follows."""

    shard: Integer
    term: Integer
    version: Integer
    phase: Integer


class WorkerState(NamedTuple):
    """A worker's answer to Takeover: its phase, its last granted batches, and those not yet pushed or given back.

    `granted`: (phase, batch) of each. `held`, neither pushed nor given back: (phase, batch, whether to train on it)."""

    worker: Integer
    term: Integer
    phase: Integer
    granted: list[tuple[Integer, Integer]]
    held: list[tuple[Integer, Integer, bool]]


class Event(NamedTuple):
    """To the launcher: an event of the run to show, log or handle."""

    name: str
    fields: dict[str, Any]


class Stop(NamedTuple):
    """To a node: shut down in an orderly way."""


#: every kind of message: the named tuples above, in their order
MESSAGES: tuple[type[Any], ...] = tuple(
    each
    for each in list(globals().values())
    if isinstance(each, type) and issubclass(each, tuple) and each.__module__ == __name__
)
KIND: dict[type[Any], int] = {cls: number for number, cls in enumerate(MESSAGES, start=1)}


#: class, decoder and first byte (msgpack: an array of so many fields) of each kind of message
_DECODERS = [(cls, msgspec.msgpack.Decoder(cls), bytes([0x90 + len(cls._fields)])) for cls in MESSAGES]


def kind_of(message: Any) -> int:
    """Return the kind number of a message, which its frame carries."""
    return KIND[type(message)]


def plain_number(value: Any) -> Any:
    """Convert a numpy scalar, which metrics contain, to a Python number: the hook of encoders. Raises TypeError."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{type(value).__name__} is no part of a message")


_ENCODER = msgspec.msgpack.Encoder(enc_hook=plain_number)


def pack(message: Any) -> bytes:
    """Encode a message as a frame's descriptor."""
    return _ENCODER.encode(message)


def unpack(kind: int, descriptor: bytes) -> Any:
    """Decode a message. Raises WireError for an unknown kind, a wrong number of fields or a wrong type."""
    if not 1 <= kind <= len(MESSAGES):
        raise WireError(f"A frame of unknown kind {kind} arrived.")
    cls, decoder, first_byte = _DECODERS[kind - 1]
    if descriptor[:1] != first_byte:
        raise WireError(f"A {cls.__name__} message is not a list of {len(cls._fields)} fields.")
    try:
        return decoder.decode(descriptor)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise WireError(f"A {cls.__name__} message cannot be read ({error}).") from error


def decode(frame: Frame) -> Any:
    """Decode a frame's message unless `frame` is decoded already. Raises WireError as `unpack` does."""
    return unpack(frame.kind, frame.descriptor) if frame.message is None else frame.message
