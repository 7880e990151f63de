"""Interface of policies: the records that they work with, the base of all policies, and the classes of modes.

The base has live workers, leases, re-issued batches and sample counts. Records are plain and frozen; making one costs
about half a microsecond. A decision costs a few microseconds, whatever the number of workers; the loss of a worker
costs a look at its leases.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import ClassVar

from gbactl.checked_dataclasses import python_number
from gbactl.conf_catalogue import option_files
from gbactl.configured_classes import found_class
from gbactl.errors import AccountingError, require


@dataclass(frozen=True, slots=True)
class Phase:
    """Phase: one mode within one day (or epoch). Batches are numbered in data order; sizes in samples.

    `joiners` train in other phases; here they only join what needs every worker, as `sync`'s all-reduce does.
    `prefetch`: what a worker fetches of its next batch while it computes: none, data (and ids), or rows (and the dense
    part) too."""

    samples: int
    local_batch: int
    global_batch: int
    first_step: int
    workers: tuple[int, ...]
    joiners: tuple[int, ...] = ()
    prefetch: str = "none"

    @property
    def batches(self) -> int:
        """Number of local batches in the phase; the last one may be short."""
        return -(-self.samples // self.local_batch)

    @property
    def prefetches(self) -> bool:
        """Whether a worker is told its next batch while it computes another one."""
        return self.prefetch != "none"

    @property
    def gradients_per_step(self) -> int:
        """Number of gradients that make a step: global batch / local batch."""
        return self.global_batch // self.local_batch

    def size(self, batch: int) -> int:
        """Return the number of samples in a batch; 0 past the end of the data."""
        return max(0, min(self.local_batch, self.samples - batch * self.local_batch))


@dataclass(frozen=True, slots=True)
class Grant:
    """Grant: a batch handed out to a worker.

    `after`: the version a shard must have reached before it serves the rows. `divisor`: divisor of the step's sum
    where the worker applies the dense step itself (`sync`), else 0. `progress`: samples
    of the phase finished before the step (`sync`), else 0. A grant of 0 samples only joins the step."""

    batch: int
    token: int
    start: int
    samples: int
    after: int = 0
    divisor: float = 0.0
    progress: int = 0


@dataclass(frozen=True, slots=True)
class Member:
    """Member of a step: one gradient with its weight (its decay x its share of a full batch).

    `row_weights`, where rows have a staleness of their own: f(s) x n / B for s = 0 .. token staleness."""

    batch: int
    worker: int
    weight: float
    samples: int
    token_staleness: int
    row_weights: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Step:
    """Optimizer step: every shard applies the members in this order, and then has version step + 1.

    `accepted`: the divisor is the sum of the members' weights, whatever they are."""

    step: int
    members: tuple[Member, ...]
    divisor: float
    accepted: bool = False

    @property
    def weight_sum(self) -> float:
        """Sum of the members' weights, in order."""
        return sum([m.weight for m in self.members])

    @property
    def samples(self) -> int:
        """Number of the members' samples."""
        return sum([m.samples for m in self.members])

    def shares(self, local_batch: int) -> tuple[float, ...]:
        """Compute each member's samples / local batch; empty if all are full-sized."""
        found = [m.samples / local_batch for m in self.members]
        return () if found.count(1.0) == len(found) else tuple(found)


@dataclass(frozen=True, slots=True)
class Drop:
    """Discarded gradient, whose samples are lost."""

    batch: int
    samples: int


Decision = Step | Drop


@dataclass(slots=True)
class Ledger:
    """Counts of samples by fate: trained, decayed, lost. `effective` sums weight x samples of applied gradients."""

    read: int = 0
    trained: int = 0
    decayed: int = 0
    lost: int = 0
    effective: float = 0.0

    def count_step(self, step: Step) -> None:
        """Count the samples of an applied step as trained or decayed."""
        for member in step.members:
            if member.weight > 0:
                self.trained += member.samples
                self.effective += member.weight * member.samples
            else:
                self.decayed += member.samples

    @property
    def finished(self) -> int:
        """Number of samples with a fate (trained, decayed, lost), from which schedules compute their progress."""
        return self.trained + self.decayed + self.lost

    def check(self) -> None:
        """Check that read = trained + decayed + lost. Raises AccountingError."""
        if self.read != self.finished:
            raise AccountingError(
                f"Samples do not add up: read {self.read} is not trained {self.trained} + decayed "
                f"{self.decayed} + lost {self.lost}; this is a bug, please report the run directory."
            )

    def add(self, other: Ledger) -> None:
        """Add the counts of another phase."""
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


@dataclass(frozen=True)
class PolicyOptions:
    """Base of the options that a mode has in addition to the options of all modes."""

    def check_workers(self, workers: int) -> None:
        """Raise ConfigError, with the key to type, if the options cannot work with this number of workers."""


@dataclass
class Policy(ABC):
    """Policy of a mode in one phase: which worker gets which batch, and which gradients make a step."""

    phase: Phase
    options: PolicyOptions = field(default_factory=PolicyOptions)
    ledger: Ledger = field(default_factory=Ledger)

    #: the type of `options`: its fields are the mode's own keys in conf/mode/
    Options: ClassVar[type[PolicyOptions]] = PolicyOptions
    #: the value of the metric `mode_id` in this mode, which no other mode ever has; a subclass does not inherit it
    number: ClassVar[int | None] = None
    #: who holds the dense parameters: "servers", "workers" (every worker the same copy), or "replicas" (each its own)
    home: ClassVar[str] = "servers"
    #: whether its workers need an all-reduce among all of them
    collective: ClassVar[bool] = False
    #: whether a step applies the gradients of a global batch, and not one gradient
    global_step: ClassVar[bool] = True
    #: whether every worker computes one batch of every step
    in_step: ClassVar[bool] = False
    #: whether the event log has all that a replay needs, provided that it has the order in which gradients are summed
    replayable: ClassVar[bool] = True
    #: whether rows may be fetched before the batch's turn
    prefetch_rows: ClassVar[bool] = True

    def __post_init__(self) -> None:
        self.options.check_workers(len(self.phase.workers))
        self.next_batch = 0
        self.step = self.phase.first_step
        self.live: set[int] = set(self.phase.workers)
        #: grows when a refused worker may be granted a batch; until then asking again is useless
        self.openings = 0
        #: worker -> its leases: grants of batches whose gradients are not announced yet, by batch
        self.leases: dict[int, dict[int, Grant]] = {}
        self.reissue: deque[int] = deque()
        #: (worker, batch) settled with the last hand-out: the next batch of each, so its data can be prepared
        self.ahead: list[tuple[int, int]] = []

    @abstractmethod
    def take(self, worker: int) -> Grant | None:
        """Grant a worker its next batch; None when it must wait, is not live, or no batch is left."""

    @abstractmethod
    def announce(self, worker: int, batch: int) -> list[Decision]:
        """Record a gradient that has reached every shard; return the steps and drops that follow, in order."""

    def poll(self) -> list[Decision]:
        """Return the steps that are due without a new gradient; called after a worker was lost or joined."""
        return []

    def finish(self) -> list[Step]:
        """Apply the gradients left over at the end of a phase, when no batch is in flight any more."""
        return []

    def stop(self, batch: int = 0) -> None:
        """End the phase early: stop hand-out at `batch` (or the next batch, if later), rounded up to whole steps.

        A failed worker's batches are still handed out again."""
        batches = min(self._last_batch(max(batch, self.next_batch)), self.phase.batches)
        samples = min(self.phase.samples, batches * self.phase.local_batch)
        self.phase = replace(self.phase, samples=samples)
        self.openings += 1

    def _last_batch(self, batch: int) -> int:
        """Compute the batch at which hand-out stops so that no step is partial: `batch`, rounded up to whole steps."""
        size = self.phase.gradients_per_step
        return -(-batch // size) * size

    def batches_of(self, steps: int) -> int | None:
        """Compute the number of batches that make `steps` steps; None if it is not fixed in advance."""
        return None

    #: whether what is in flight can be given up
    forgoes: ClassVar[bool] = True

    def forgo(self) -> list[int]:
        """Give up the batches in flight, which count as decayed, and end the phase. Returns the batches."""
        samples = min(self.phase.samples, self.next_batch * self.phase.local_batch)
        self.phase = replace(self.phase, samples=samples)
        given_up = sorted({*self.reissue}.union(*self.leases.values()))
        self.ledger.decayed += sum(self.phase.size(batch) for batch in given_up)
        self.leases.clear()
        self.reissue.clear()
        return given_up

    @property
    def exhausted(self) -> bool:
        """Whether no batch is left to hand out."""
        return self.next_batch >= self.phase.batches and not self.reissue

    @property
    def idle(self) -> bool:
        """Whether no batch is left to hand out, and none is in flight."""
        return self.exhausted and not self.leases

    def leased_to(self, worker: int) -> dict[int, Grant]:
        """Grants of a worker whose gradients have not been announced, by batch."""
        return self.leases.get(worker, {})

    def lost_worker(self, worker: int) -> list[int]:
        """Remove a failed worker. Returns its leased batches, which are handed out again."""
        self.live.discard(worker)
        self.openings += 1
        back = sorted(self.leases.pop(worker, ()))
        self.reissue.extend(back)
        return back

    def owes_batch(self, worker: int) -> bool:
        """Whether a worker must get a batch that it has not requested, in a step that it already takes part in."""
        return False

    def joined_worker(self, worker: int) -> None:
        """Add a worker that has joined, or the successor of a failed one: it gets batches from now on."""
        self.live.add(worker)
        self.openings += 1

    def _next(self) -> int | None:
        """Take the next batch to hand out, re-issued batches first, and count a new one as read; return its number."""
        if self.reissue:
            return self.reissue.popleft()
        if self.next_batch >= self.phase.batches:
            return None
        batch = self.next_batch
        self.next_batch += 1
        self.ledger.read += self.phase.size(batch)
        return batch

    def _lease(self, worker: int, grant: Grant) -> Grant:
        self.leases.setdefault(worker, {})[grant.batch] = grant
        return grant

    def _return(self, worker: int, batch: int) -> Grant | None:
        """End a worker's lease of a batch and return its grant; None if the worker has no such lease (a duplicate)."""
        held = self.leased_to(worker)
        grant = held.pop(batch, None)
        if not held:
            self.leases.pop(worker, None)
        return grant

    def _emit(self, step: Step) -> Step:
        """Count a step, and return it with Python floats, as the weights of a user's policy may be NumPy's."""
        if type(step.divisor) is not float or any([type(m.weight) is not float for m in step.members]):
            members = tuple(replace(m, weight=python_number(m.weight)) for m in step.members)
            step = replace(step, members=members, divisor=python_number(step.divisor))
        self.ledger.count_step(step)
        self.step += 1
        return step

    def _drop(self, grant: Grant) -> Drop:
        self.ledger.lost += grant.samples
        return Drop(grant.batch, grant.samples)


def refusal(samples: int) -> str:
    """Describe the error of a policy that refuses every worker while `samples` are left and nothing is in flight."""
    return (
        f"grants no worker a batch, although {samples:,} samples are left and no gradient is on its way; let take "
        "return a Grant, or raise self.openings when a refused worker may ask again"
    )


def names(such: Callable[[type[Policy]], bool] = lambda _: True) -> tuple[str, ...]:
    """List the modes that have a configuration file; with `such`, only modes whose policy class satisfies it."""
    return tuple(name for name in option_files("mode") if such(policy_class(name)))


def policy_class(name: str, target: str | None = None) -> type[Policy]:
    """Return the policy class of a mode: the class `target`, or else the one in the mode's file. Raises ConfigError."""
    what = f"a policy, a subclass of {Policy.__module__}.Policy"
    found = found_class("mode", name, target, what, lambda found: issubclass(found, Policy))
    own, options = f"mode.target={found.__module__}.{found.__qualname__}", found.Options
    lacking = " and ".join(sorted(found.__abstractmethods__))
    advice = "write it, or derive the class from gbactl.policies.async_and_bsp.BufferedPolicy"
    require(not lacking, f"{own} lacks the method {lacking} of a policy; {advice}.")
    fits = isinstance(options, type) and issubclass(options, PolicyOptions)
    require(fits, f"{own} has Options that are no subclass of {PolicyOptions.__module__}.PolicyOptions.")
    return found


def make(name: str, phase: Phase, options: PolicyOptions | None = None) -> Policy:
    """Make the policy of a mode of gbactl for one phase; without `options`, with the mode's default ones."""
    mode = policy_class(name)
    return mode(phase, options or mode.Options())
