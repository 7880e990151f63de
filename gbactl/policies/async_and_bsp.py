"""Policies that take a step whenever a buffer of announced gradients is full: their base, `async` and `bsp`."""

from __future__ import annotations

from typing import ClassVar

from gbactl.policies.policy import Decision, Grant, Member, Policy, Step


class BufferedPolicy(Policy):
    """Policy with a buffer: any worker gets the next batch at once; `size` announced gradients make a step."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.buffer: list[Member] = []
        self.size = self.buffer_size()
        self.pulled = 0  # number of different batches whose parameters were pulled
        self.tokens: dict[int, int] = {}  # batch in flight -> its token, dealt at the pull
        self.waiting: dict[int, list[int]] = {}  # worker -> batches, each pulled when the one before is computed
        self._repulled: set[int] = set()  # batches to be pulled again, as their worker has failed

    def buffer_size(self) -> int:
        """Return the number of gradients that make a step: global batch / local batch."""
        return self.phase.gradients_per_step

    def factor(self, token_staleness: int) -> float:
        """Compute the weight of a full-sized gradient from its token staleness: 1 unless a subclass overrides this."""
        return 1.0

    @property
    def divides_by_weights(self) -> bool:
        """Whether a step is divided by the sum of its weights instead of the number of its gradients."""
        return False

    def row_factors(self, token_staleness: int) -> tuple[float, ...]:
        """Compute the weights of a gradient's rows by the row's own staleness, from 0 to `token_staleness`.

        Empty if all rows have the gradient's weight, as here."""
        return ()

    def take(self, worker: int) -> Grant | None:
        """Grant a worker the next batch in data order; batches to be re-issued come first.

        A worker that prefetches data alone pulls its second batch's parameters when the first one is computed. That
        batch gets its token then; the grant has the one of a pull at once."""
        if worker not in self.live:
            return None
        batch = self._next()
        if batch is None:
            return None
        token = self.token()
        if self.phase.prefetch == "data" and self.leased_to(worker):
            self.waiting.setdefault(worker, []).append(batch)
        else:
            self._pull(batch)
        return self._lease(worker, self.grant(batch, token))

    def grant(self, batch: int, token: int) -> Grant:
        """Make the grant of a batch."""
        return Grant(batch, token, batch * self.phase.local_batch, self.phase.size(batch))

    def batches_of(self, steps: int) -> int:
        """Compute the number of batches that make `steps` steps, which are full buffers."""
        return steps * self.size

    def token(self) -> int:
        """Compute the token of the next pull: the global step of which its gradient should be part."""
        return self.phase.first_step + self.pulled // self.size

    def _pull(self, batch: int) -> None:
        self.tokens[batch] = self.token()
        self.pulled += batch not in self._repulled
        self._repulled.discard(batch)

    def lost_worker(self, worker: int) -> list[int]:
        """Remove a failed worker. Its batches, which are handed out again, get new tokens."""
        back = super().lost_worker(worker)
        self.waiting.pop(worker, None)
        self._repulled.update(batch for batch in back if self.tokens.pop(batch, None) is not None)
        return back

    def announce(self, worker: int, batch: int) -> list[Decision]:
        """Put a gradient into the buffer, and close a step if the buffer is full; a duplicate is ignored."""
        grant = self._return(worker, batch)
        if grant is None:
            return []
        waiting = self.waiting.get(worker, [])
        if batch in waiting:
            waiting.remove(batch)
            self._pull(batch)
        staleness = max(0, self.step - self.tokens.pop(batch))
        if waiting:
            self._pull(waiting.pop(0))
        share = grant.samples / self.phase.local_batch
        rows = tuple(float(factor) * share for factor in self.row_factors(staleness))
        self.buffer.append(Member(batch, worker, self.factor(staleness) * share, grant.samples, staleness, rows))
        return [self._close()] if len(self.buffer) == self.size else []

    def finish(self) -> list[Step]:
        """Apply the gradients left in the buffer as a last step, divided by what is there."""
        return [self._close()] if self.buffer else []

    def _close(self) -> Step:
        members, self.buffer = tuple(self.buffer), []
        accepted = self.divides_by_weights
        divisor = sum(m.weight for m in members) if accepted else self._divisor(members)
        return self._emit(Step(self.step, members, divisor, accepted))

    def _divisor(self, members: tuple[Member, ...]) -> float:
        """Compute the divisor of a step: its number of gradients; a short batch counts as samples / local batch."""
        if all(m.samples == self.phase.local_batch for m in members):
            return float(len(members))
        return sum(m.samples / self.phase.local_batch for m in members)


class AsyncPolicy(BufferedPolicy):
    """Policy of `async`: every gradient is a step by itself, on arrival, with weight 1."""

    number: ClassVar[int | None] = 1
    global_step: ClassVar[bool] = False

    def buffer_size(self) -> int:
        """Return the number of gradients that make a step: 1."""
        return 1


class BspPolicy(BufferedPolicy):
    """Policy of `bsp`: like `gba` without staleness weights; steps need no barrier, despite the mode's name."""

    number: ClassVar[int | None] = 3
