"""The messages of the cluster: named tuples on msgpack, checked field by field when read.

Costs about 3 us to read. Payloads (raw tensors) travel beside them and are described by their counts.
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
    """A node introduces itself to the coordinator; `address` is where it listens, if it does."""

    role: str
    number: int
    address: str
    pid: int


class Setup(NamedTuple):
    """To a worker: where the servers are, in shard order."""

    servers: list[str]


class Install(NamedTuple):
    """To a server: the dense vector's layout; payload float32[the shard's slice], its first values."""

    params: int
    buffers: int


class Ready(NamedTuple):
    """A node can take work."""

    role: str
    number: int


class BeginPhase(NamedTuple):
    """A phase (training or evaluation) starts; `number` stands in every later message of it.

    It has `samples` of the split from `first_sample` on; batches and their samples count from there. Where `ranges`
    is not empty (see checkpoint/ranges.py), they count through those instead.
    """

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
    """To a worker: nobody waits for what it has of a phase. It forgets what it has not begun."""

    phase: int


class MoveDense(NamedTuple):
    """To a worker, when nothing is in flight: take the dense parameters from the servers ("workers"), or let the
    servers have them ("servers"), to which worker `giver` gives them."""

    home: str
    giver: int
    turn: int


class Moved(NamedTuple):
    """The answer to MoveDense, with its `turn`."""

    worker: int
    turn: int


class OpenReplicas(NamedTuple):
    """To a worker: in the phase that begins, workers 0 to `trainers` - 1 have a dense replica each, which `rule` keeps
    together with the mode's own keys as `values` (see gbactl/replicas/), in the background if `shadow`."""

    turn: int
    rule: str
    shadow: bool
    trainers: int
    values: dict[str, Any]


class CloseReplicas(NamedTuple):
    """To a worker: there is no more data in this phase. It answers the others until all leave, then the servers get
    its replica, and ClosedReplicas is its answer. Not the `last` one: what others had may still come, if they die; it
    answers the others until then, and gives no answer."""

    turn: int
    last: bool = True


class ClosedReplicas(NamedTuple):
    """The answer to CloseReplicas: `notes` of its exchanges (see trainer/statistics.py)."""

    worker: int
    turn: int
    notes: dict[str, Any]


class Elastic(NamedTuple):
    """To a server: the slice of a replica, payload float32; the centre goes `alpha` of the way towards it, and what it
    was before is the answer, Centre."""

    ticket: int
    alpha: float


class Centre(NamedTuple):
    """A server's slice of the centre before an exchange: payload float32."""

    ticket: int


class GiveReplica(NamedTuple):
    """To a server: a trainer's slice with its optimizer after `step` steps, payload as DenseState's; answered with
    Ack. What all gave in one `turn` is summed up until SettleReplicas; a later turn begins anew."""

    step: int
    turn: int


class SettleReplicas(NamedTuple):
    """To a server: hold the mean of what trainers gave from now on, moments and, if `value`, the parameters (else they
    stay: the centre), and the largest step count."""

    value: bool


class SumPart(NamedTuple):
    """To the first server, of a worker whose ring is broken: its part `part` of round `number` (from 1 in a
    `generation`) of the sum called `name`, payload float32[length]; part -1: it only wants the sum, without a payload.
    The round has so many `parts`, dealt to whoever lives; 0: one of each of `ranks`, but for those who are `absent`.
    `after` > 0: with this the worker has told all parts it has so far, and the round's step is in rows from that
    version on. Answered with Sum once that is there."""

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
    """A round's sum, payload float32[length]: a server's answer, or what a worker's ring had still summed."""

    generation: int
    name: str
    number: int


class PartsLost(NamedTuple):
    """To the coordinator, of the server that sums: a step's dense gradient is without these parts of it."""

    step: int
    parts: list[int]


class RingBroken(NamedTuple):
    """To the coordinator, of the server that sums, and from there to every worker: somebody's ring is broken, and
    nobody uses it any more."""


class GetDense(NamedTuple):
    """To a server: answer with DenseState."""


class Afresh(NamedTuple):
    """To a server: the optimizer's state begins anew, parameters stay."""


class DenseState(NamedTuple):
    """A shard's dense slice with its optimizer: payload float32 (see DenseBlock.packed)."""

    step: int


class PutDense(NamedTuple):
    """To a server: hold this state (as DenseState) from now on; answered with Ack."""

    step: int


class Take(NamedTuple):
    """A worker asks for a batch."""

    worker: int


class Granted(NamedTuple):
    """A batch of a phase is handed out (see policies.Grant).

    `usual`: seconds such a batch takes undisturbed workers, for one that the fault plan slows (0: not known).
    """

    phase: int
    batch: int
    token: int
    start: int
    samples: int
    after: int
    divisor: float
    lr_scale: float
    usual: float = 0.0


class Prepare(NamedTuple):
    """To a worker: this batch of a phase is probably its next one. It may get data and ids ready; rows are not to be
    pulled before the batch is granted."""

    phase: int
    batch: int
    start: int
    samples: int


class Staged(NamedTuple):
    """A server holds its part of this gradient and hands on what the worker said of it (see Push).

    When every shard has said so, the gradient is announced, which is a Take, too.
    """

    shard: int
    worker: int
    phase: int
    batch: int
    loss: float
    seconds: float
    slowdown: float
    row_version: int
    dense_version: int
    rows: int = 0  # in its part; ~rows where it went to a server that is gone


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


class Checked(NamedTuple):
    """A server's checksum of what a step touched (see Shard.step_digest)."""

    shard: int
    step: int
    digest: str


class Norms(NamedTuple):
    """How large the gradients of a step were (see Shard.gradient_norms): a shard's, or a worker's all-reduced one."""

    step: int
    square: float
    rows: list[float]


class DropPart(NamedTuple):
    """To a server: a staged gradient is discarded."""

    phase: int
    batch: int


class Fence(NamedTuple):
    """To a server: a worker is gone. Nothing of it counts from now on, and its parts of these batches are discarded.

    Whoever takes its place has a later `epoch` than this."""

    worker: int
    phase: int
    batches: list[int]
    epoch: int = 0


class Fenced(NamedTuple):
    """A server has closed the door to a worker."""

    shard: int
    worker: int


class Barrier(NamedTuple):
    """To a server: answer `Reached` once `version` steps are applied."""

    version: int


class Reached(NamedTuple):
    """A server has applied so many steps."""

    shard: int
    version: int


class Inspect(NamedTuple):
    """Ask a node for a checksum of its parameters and its memory; `what`: checksum, or dense (of that part alone)."""

    what: str


class Inspected(NamedTuple):
    """The answer to Inspect. `model_sum`: decimal, this node's part of a sum that no sharding changes, or "".
    `refused`: what it turned away, by reason."""

    node: str
    checksum: str
    model_sum: str
    bytes: dict[str, int]
    counters: dict[str, int]
    refused: dict[str, int] = {}  # noqa: RUF012


class Pull(NamedTuple):
    """To a server: rows (payload int32[rows] local indexes) and, if asked for, the dense slice.

    Served once the shard's version is at least `after`. The dense slice is left out of the answer if its
    version is still `have_dense` (-1: never).
    """

    ticket: int
    batch: int
    rows: int
    dense: bool
    after: int
    have_dense: int


class Rows(NamedTuple):
    """A server's answer: payload float32[dense] (aligned: it is computed with in place), float32[rows, width]."""

    ticket: int
    version: int
    rows: int
    dense: int


class Push(NamedTuple):
    """A gradient's part: payload int32[rows], float32[rows, width], float32[dense].

    `seconds` it took, `slowdown` of them by the fault plan, and the versions it was computed from on this
    shard (-1: none) are for the coordinator. `rows` below 0: the part, of ~rows rows, went to a server that is gone;
    an empty one takes its place.
    """

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
    """A server has what was sent to it."""

    phase: int
    batch: int


class Save(NamedTuple):
    """To a server: write the shard as it is at this step into the checkpoint's folder `name`, `pace` bytes a second (0:
    as fast as can be); `kind`: see Rhythm."""

    number: int
    step: int
    name: str
    kind: str
    dense: bool
    pace: float


class Saved(NamedTuple):
    """The answer to Save: a file of so many bytes and rows, with its checksums, is on the disk; or `error`, why not."""

    shard: int
    number: int
    bytes: int
    rows: int
    sums: dict[str, str]
    seconds: float
    error: str
    updates: int = 0  # of rows that were not saved before and are in it, where rows are chosen
    finite: bool = True  # false: the error is that values are infinite or NaN


class SaveDense(NamedTuple):
    """To a worker: tell the dense parameters as they are after `step` steps of the job, or as they are now (0)."""

    number: int
    step: int


class SaveReplica(NamedTuple):
    """To a trainer: tell the replica as it is now, with its optimizer; nobody stands still for it."""

    number: int


class DenseSaved(NamedTuple):
    """The answer to SaveDense and SaveReplica: payload float32 (see DenseBlock.packed) with `params` parameters, after
    `step` steps.

    `params` -1: it is too late, or there is none yet."""

    number: int
    step: int
    params: int


class Absent(NamedTuple):
    """To a worker, in `sync`: another one is gone; nobody waits for it."""

    worker: int


class Numbered(NamedTuple):
    """A message, of a `kind`, over a connection that may lose it (see reliable.py); its payload is this one's."""

    number: int
    kind: int
    descriptor: bytes


class Arrived(NamedTuple):
    """Every numbered message below this one has come."""

    below: int


class Loaded(NamedTuple):
    """A server in the place of one that is gone has what the checkpoint of `step` has of its shard (-1: there was
    none); also the answer to Reload."""

    shard: int
    step: int


class Adopt(NamedTuple):
    """To a server in the place of one that is gone: go on at `version` steps, with the optimizer's state new if
    `fresh`. Its parts of the batches `lost`, announced and not applied, went with the other one."""

    version: int
    lost: list[int]
    fresh: bool


class Reload(NamedTuple):
    """To a server, when nothing is in flight: go back to the checkpoint in folder `path` ("": to the beginning)."""

    path: str


class Relocated(NamedTuple):
    """To a worker: another process serves a shard now. What the worker asked the one before is to be asked again; its
    parts of `batches` ([phase, batch, phase, ...]), if they had been sent there, are lost. Shard -1: every server has
    gone back, and no version that the worker has means anything."""

    shard: int
    address: str
    epoch: int
    batches: list[int]


class Ping(NamedTuple):
    """To a worker or a server: answer with Pong at once, whatever you compute."""

    beat: int


class Pong(NamedTuple):
    """A worker, or a server, of that number is alive."""

    worker: int
    beat: int


class Revive(NamedTuple):
    """To a node that has come back: another coordinator, with a later `epoch`, begins where the one before ended."""

    epoch: int


class Standing(NamedTuple):
    """A server's answer to Revive: its version and the phase it is in. `Staged` of every part that waits follow."""

    shard: int
    epoch: int
    version: int
    phase: int


class Holding(NamedTuple):
    """A worker's answer to Revive: the phase it is in, the last batches it was granted (phase, batch, ...), and those
    of them that it has neither pushed nor given back (phase, batch, whether to train on it, ...)."""

    worker: int
    epoch: int
    phase: int
    granted: list[int]
    held: list[int]


class Event(NamedTuple):
    """To the launcher: something to show, log or act on."""

    name: str
    fields: dict[str, Any]


class Stop(NamedTuple):
    """End in an orderly way."""

    reason: str


Message = (
    Hello | Setup | Install | Ready | BeginPhase | Take | Granted | Staged | Predictions | OrderStep | Barrier
    | Reached | Inspect | Inspected | Pull | Rows | Push | Ack | Event | Stop | Checked | Norms | DropPart
    | MoveDense | Moved | GetDense | DenseState | PutDense | Fence | Fenced | Abandon | Afresh
    | Save | Saved | SaveDense | SaveReplica | DenseSaved
    | Ping | Pong | Absent | Numbered | Arrived
    | OpenReplicas | CloseReplicas | ClosedReplicas | Elastic | Centre | GiveReplica | SettleReplicas
    | SumPart | Sum | PartsLost
    | Revive | Standing | Holding
    | Loaded | Adopt | Reload | Relocated
    | RingBroken | Prepare
)  # fmt: skip
MESSAGES: tuple[type[Any], ...] = typing.get_args(Message)
KIND: dict[type[Any], int] = {cls: number for number, cls in enumerate(MESSAGES, start=1)}


def _checker(annotation: Any) -> tuple[tuple[type, ...], type | None]:
    """(accepted types, type of elements, of a map's values, or None) of an annotation."""
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
    """What a well-formed message looks like, for the short way through `unpack`."""

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
    """The frame kind of a message."""
    return KIND[type(message)]


def pack(message: Any) -> bytes:
    """The descriptor of a message."""
    data: bytes = msgpack.packb(tuple(message), use_bin_type=True)
    return data


def unpack(kind: int, descriptor: bytes) -> Any:
    """Read a message. Raises WireError for an unknown kind, a wrong number of fields or a wrong type."""
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
    """The message of a frame. Raises WireError as `unpack` does."""
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
