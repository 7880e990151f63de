"""Dry run of a policy of the user's own, before training: does it keep the contract of a policy?

Some global batches are handed out to the workers, whose gradients arrive in the order of their grants: every worker
gets batches until none is left, each gradient becomes part of one step or drop, and all samples are counted. As in a
run, a worker that was refused a batch is asked again only when `openings` has grown. gbactl's own policies are not run:
tests have seen to them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from gbactl.checked_dataclasses import python_number
from gbactl.configured_classes import own_code_error
from gbactl.errors import GbactlError, require
from gbactl.policies.async_and_bsp import BufferedPolicy
from gbactl.policies.policy import Drop, Grant, Member, Phase, Policy, PolicyOptions, Step, refusal

STEPS = 3  # global batches of the dry run, and a short batch
STALENESS = 4  # values of token staleness, from 0 on, whose weight is looked at


def dry_run(
    kind: type[Policy], options: PolicyOptions, workers: int, local_batch: int, global_batch: int, prefetch: str
) -> None:
    """Test a policy in a short phase of a run. Raises ConfigError, one sentence, if it breaks the contract."""
    what = f"mode.target={kind.__module__}.{kind.__qualname__}"
    samples = STEPS * max(global_batch, local_batch * workers) + (local_batch + 1) // 2
    phase = Phase(samples, local_batch, global_batch, 0, tuple(range(workers)), prefetch=prefetch)
    try:
        policy = kind(phase, options)
        require(hasattr(policy, "leases"), f"{what} has a __post_init__ that does not call super().__post_init__().")
        if isinstance(policy, BufferedPolicy):
            _check_buffer(what, policy)
        _Workers(what, policy).run()
    except GbactlError:
        raise
    except Exception as error:
        raise own_code_error(f"{what} fails in a dry run", error, kind.__module__) from error


def _check_buffer(what: str, policy: BufferedPolicy) -> None:
    """Raise ConfigError unless the methods that a subclass of BufferedPolicy overrides return numbers."""
    size = policy.size
    require(
        isinstance(size, int) and size >= 1, f"{what}.buffer_size() returns {size!r}, not a whole number from 1 on."
    )
    for staleness in range(STALENESS):
        factor: Any = policy.factor(staleness)
        require(_weighs(factor), f"{what}.factor({staleness}) returns {factor!r}, not a number from 0 on.")


def _weighs(value: Any) -> bool:
    """Whether a value can be a weight: a number of Python's or NumPy's that is finite and not negative."""
    number = python_number(value)
    return isinstance(number, int | float) and 0 <= number < float("inf")


class _Workers:
    """Workers that request batches of a policy, and announce their gradients one after the other."""

    def __init__(self, what: str, policy: Policy) -> None:
        self.what, self.policy, self.phase = what, policy, policy.phase
        self.waiting: deque[int] = deque()
        self.computing: deque[tuple[int, int]] = deque()
        self.openings, self.step, self.empty, self.granted = policy.openings, policy.step, 0, 0

    def run(self) -> None:
        """Hand out all batches. Raises ConfigError if that does not end, or if a decision is invalid."""
        policy, phase = self.policy, self.phase
        for _ in range(2 if phase.prefetches else 1):
            for worker in phase.workers:
                self._request(worker)
        while self.computing:
            worker, batch = self.computing.popleft()
            self._check(f"announce({worker}, {batch})", policy.announce(worker, batch))
            self._serve()
            self._request(worker)
        rest = sum(phase.size(batch) for batch in range(phase.batches)) - policy.ledger.read
        require(policy.exhausted, f"{self.what} {refusal(rest)}.")
        kept = sorted(set[int]().union(*policy.leases.values()))
        require(policy.idle, f"{self.what} keeps batches {kept} leased after their gradients arrived; "
                             "call self._return(worker, batch) in announce.")  # fmt: skip
        self._check("finish()", policy.finish())
        ledger, told = policy.ledger, "end steps by self._emit and drops by self._drop, which count their samples"
        counted = f"reads {ledger.read} of {phase.samples} samples and gives a fate to {ledger.finished}"
        require(ledger.read == ledger.finished == phase.samples, f"{self.what} {counted}; {told}.")

    def _serve(self) -> None:
        """Repeat the waiting workers' requests if the policy's `openings` shows that it may now grant them."""
        if self.policy.openings != self.openings:
            self.openings = self.policy.openings
            for _ in range(len(self.waiting)):
                self._request(self.waiting.popleft())

    def _request(self, worker: int) -> None:
        grant: Any = self.policy.take(worker)
        if grant is None:
            self.waiting.append(worker)
            return
        require(isinstance(grant, Grant), f"{self.what}.take({worker}) returns {grant!r}, neither a Grant nor None.")
        size = self.phase.size(grant.batch)
        why = f"{self.what}.take({worker}) grants batch {grant.batch} of {size} samples with {grant.samples} samples"
        require(grant.samples == size, f"{why}.")
        if size:
            self.granted += 1
            endless = self.granted > self.phase.batches
            require(not endless, f"{self.what}.take({worker}) grants batches for ever; take them from self._next().")
            self.computing.append((worker, grant.batch))
            return
        self.empty += 1
        most = (self.phase.batches + 1) * len(self.phase.workers)
        require(self.empty <= most, f"{self.what}.take({worker}) grants batches without samples for ever.")
        self._request(worker)

    def _check(self, call: str, decisions: Any) -> None:
        """Raise ConfigError unless a call returned decisions that the servers can carry out."""
        call = f"{self.what}.{call}"
        whole = isinstance(decisions, Sequence) and all(isinstance(each, Step | Drop) for each in decisions)
        require(whole, f"{call} returns {decisions!r}, not a list of Step and Drop.")
        for step in (each for each in decisions if isinstance(each, Step)):
            require(step.step == self.step, f"{call} numbers a step {step.step}, not {self.step}.")
            self.step += 1
            members: Any = step.members
            require(bool(members) and all(isinstance(each, Member) for each in members), f"{call} has an empty step.")
            for member in members:
                require(
                    _weighs(member.weight), f"{call} weighs a gradient with {member.weight!r}, no number from 0 on."
                )
            divides = _weighs(step.divisor) and (step.divisor > 0 or not any(member.weight for member in members))
            require(divides, f"{call} divides a step by {step.divisor!r}, not by a number above 0.")
