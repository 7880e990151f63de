"""One phase of training against recorded channels: grants, orders, the journal, and what is refused."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from gbactl.coordinator.event_log import AnnounceRecord, EventLog, GrantRecord, LeftRecord, OrderRecord, read
from gbactl.coordinator.live_phase import LivePhase
from gbactl.coordinator.membership import Membership
from gbactl.coordinator.statistics import Statistics
from gbactl.coordinator.training_phase import StagedSlices, TrainingPhase
from gbactl.errors import AccountingError, ClusterError, WireError
from gbactl.policies.async_and_bsp import AsyncPolicy
from gbactl.policies.gba import GbaOptions
from gbactl.policies.policy import Grant, Phase, Policy, make
from gbactl.store.gradient_slice import StepOrder
from gbactl.wire.auth import Peer
from gbactl.wire.messages import Granted, Hello, OrderStep, PrefetchHint, Staged


class Recorder:
    """A channel that keeps what was sent, and reads the journal at that moment."""

    def __init__(self, role: str, index: int, journal: Callable[[], list[Any]]) -> None:
        self.peer = Peer(role, index)
        self.sent: list[Any] = []
        self.journal = journal

    def send(self, message: Any, payload: Any = None) -> None:
        if isinstance(message, OrderStep):
            orders = [record.step for record in self.journal() if isinstance(record, OrderRecord)]
            assert message.order.step in orders, "an order is in the file before it is sent"
        self.sent.append(message)

    def reserve(self, nbytes: int) -> Any:
        raise NotImplementedError

    def close(self) -> None:
        pass


class Setting:
    """gba, M = 2, batches of 4; two workers, two servers; phase number 7."""

    def __init__(
        self, folder: Path, samples: int = 20, mode: str = "gba", ahead: bool = False, kind: type[Policy] | None = None,
        workers: int = 2, options: GbaOptions | None = None,
    ) -> None:  # fmt: skip
        self.path = folder / "events.log"
        self.members = Membership(workers, servers=2)
        self.channels: dict[str, Recorder] = {}
        for role, count in (("server", 2), ("worker", workers)):
            for index in range(count):
                channel = Recorder(role, index, lambda: list(read(self.path)))
                self.channels[str(channel.peer)] = channel
                self.members.hello(channel, Hello(role, index, ""))
        self.statistics = Statistics()
        begun = Phase(samples, 4, 8, 0, tuple(range(workers)), prefetch="data" if ahead else "none")
        policy = make(mode, begun, options) if kind is None else kind(begun, kind.Options())
        self.waiting: deque[int] = deque()
        self.log = EventLog(self.path, {})
        phase = TrainingPhase(policy, lambda finished: 1.0 / (1 + finished), self.statistics)
        self.training = LivePhase(7, phase, self.members, self.log, self.waiting)

    def announce(self, worker: int, batch: int, rows: Any = (0, 0), dense: Any = (0, 0), phase: int = 7) -> None:
        for shard, (row, own) in enumerate(zip(rows, dense, strict=True)):
            self.stage(shard, worker, batch, row, own, phase)

    def stage(self, shard: int, worker: int, batch: int, row: int = 0, dense: int = 0, phase: int = 7) -> bool:
        return self.training.on_staged(Staged(shard, worker, phase, batch, 0.5, 0.1, 1.0, row, dense))

    def of(self, name: str, kind: type[Any]) -> list[Any]:
        return [message for message in self.channels[name].sent if isinstance(message, kind)]


@pytest.fixture
def at(tmp_path: Path) -> Setting:
    return Setting(tmp_path)


def test_grants_carry_the_phase_and_the_token(at: Setting) -> None:
    for worker in (0, 1, 1):
        assert at.training.take(worker)
    assert at.of("W1", Granted) == [Granted(7, 1, 0, 4, 4, 0, 0.0, 0.0), Granted(7, 2, 1, 8, 4, 0, 0.0, 0.0)]


def test_a_full_buffer_is_one_order_to_every_server_after_the_journal(at: Setting) -> None:
    at.training.take(0), at.training.take(1)
    at.announce(1, 1)
    assert at.of("S0", OrderStep) == []
    at.announce(0, 0)
    [order] = at.of("S0", OrderStep)
    assert order == OrderStep(7, StepOrder(0, ((1, 1.0), (0, 1.0)), 2.0, 2.0), False)
    assert at.of("S1", OrderStep) == [order]
    at.log.flush()
    kinds = [type(record) for record in read(at.path)][1:]
    assert kinds == [GrantRecord, GrantRecord, AnnounceRecord, AnnounceRecord, OrderRecord]


@pytest.mark.parametrize("accepted", [False, True])
def test_an_order_says_what_a_short_batch_counts_and_whether_weights_are_what_is_divided_by(
    tmp_path: Path, accepted: bool
) -> None:
    at = Setting(tmp_path, samples=11, options=GbaOptions(divisor="accepted" if accepted else "M"))
    for batch in range(3):
        at.training.take(0)
        at.announce(0, batch)
    at.training.finish()
    assert [(each.order.accepted, each.order.shares) for each in at.of("S0", OrderStep)] == [
        (accepted, ()),
        (accepted, (0.75,)),
    ]


@pytest.mark.parametrize("ahead", [True, False])
def test_backup_workers_learn_of_their_next_batch_before_they_announce_the_one_at_hand(
    tmp_path: Path, ahead: bool
) -> None:
    at = Setting(tmp_path, samples=15, mode="hop_bw", ahead=ahead)
    for worker in (0, 1):
        assert at.training.take(worker)
    told = [at.of(name, PrefetchHint) for name in ("W0", "W1")]
    assert told == ([[PrefetchHint(7, 2, 8, 4)], [PrefetchHint(7, 3, 12, 3)]] if ahead else [[], []])
    at.announce(1, 1)  # the first of the two closes the step
    assert at.training.take(1)
    assert at.of("W1", Granted)[-1] == Granted(7, 3 if ahead else 2, 1, 12 if ahead else 8, 3 if ahead else 4, 1, 0, 0)


def test_who_is_leaving_is_told_of_no_batch_to_come(tmp_path: Path) -> None:
    at = Setting(tmp_path, mode="hop_bw", ahead=True)
    assert at.training.take(0)
    at.training.ignore_worker(0)
    assert at.training.take(1)
    assert (at.of("W0", PrefetchHint), at.of("W1", PrefetchHint)) == ([], [PrefetchHint(7, 3, 12, 4)])


def test_the_rate_of_a_step_is_a_function_of_the_samples_finished_before_it(at: Setting) -> None:
    for batch in range(4):
        at.training.take(0)
        at.announce(0, batch)
    assert [each.order.lr_scale for each in at.of("S0", OrderStep)] == [1.0, 1 / 9]


def test_who_waits_is_served_as_soon_as_the_policy_allows(tmp_path: Path) -> None:
    at = Setting(tmp_path, samples=4)
    assert at.training.take(0)
    assert not at.training.take(1)
    at.waiting.append(1)
    at.training.policy.lost_worker(0)
    at.training.serve()
    assert [grant.batch for grant in at.of("W1", Granted)] == [0]
    assert not at.waiting


class Refuses(AsyncPolicy):
    """A user's policy that grants so many batches."""

    most = 1

    def take(self, worker: int) -> Grant | None:
        return super().take(worker) if self.next_batch < self.most else None


def ask(at: Setting, *workers: int) -> Setting:
    """The coordinator gets requests of workers, and nobody's gradient."""
    at.waiting.extend(workers)
    at.training.serve()
    return at


def fail(at: Setting, *workers: int) -> None:
    """Workers fail, and the servers refuse their messages."""
    for worker in workers:
        at.waiting.remove(worker)
        at.training.ignore_worker(worker)
        at.training.release_batches(worker)


@pytest.mark.parametrize(
    ("kind", "most", "happens", "ends"),
    [
        (Refuses, 0, lambda at: ask(at, 0, 1), True),
        (Refuses, 1, lambda at: (ask(at, 0, 1), at.announce(0, 0), at.waiting.append(0)), True),
        (Refuses, 1, lambda at: ask(at, 0, 1, 0), False),  # it prefetches: a gradient is on its way
        (Refuses, 0, lambda at: ask(at, 0), False),  # another worker may get a batch
        (Refuses, 0, lambda at: (ask(at, 0, 1), at.training.policy.lost_worker(0)), False),  # it says: ask again
        (Refuses, 0, lambda at: fail(ask(at, 0, 1), 0), True),  # the other one is refused again
        (Refuses, 0, lambda at: fail(ask(at, 0, 1), 0, 1), False),  # a successor may get a batch
        (Refuses, 0, lambda at: (ask(at, 0, 1), at.training.resume_after_failover([], {0})), False),  # unasked by now
        (Refuses, 0, lambda at: (ask(at, 0, 1), at.training.stop()), False),  # the phase ends
        (type("Own", (Refuses,), {"__module__": "gbactl.policies.own"}), 0, lambda at: ask(at, 0, 1), False),
    ],
)
def test_a_policy_of_the_user_s_that_refuses_ends_the_run_only_if_nothing_can_change_this(
    tmp_path: Path, kind: type[Refuses], most: int, happens: Callable[[Setting], object], ends: bool
) -> None:
    at = Setting(tmp_path, kind=type("Few", (kind,), {"__module__": kind.__module__, "most": most}))
    happens(at)
    with pytest.raises(ClusterError, match="Few grants no worker") if ends else nullcontext():
        at.training.check_hand_out()


@pytest.mark.parametrize(("worker", "batch", "phase"), [(1, 0, 7), (0, 5, 7), (0, -1, 7), (0, 0, 6)])
def test_an_announcement_that_nobody_waits_for_changes_nothing(
    at: Setting, worker: int, batch: int, phase: int
) -> None:
    at.training.take(0)
    at.announce(worker, batch, phase=phase)
    assert at.statistics.pulled == {} and 0 in at.training.policy.leased_to(0)


def test_a_gradient_is_announced_when_the_last_shard_has_it(at: Setting) -> None:
    at.training.take(0)
    assert [at.stage(1, 0, 0), at.stage(1, 0, 0)] == [False, False]
    assert at.statistics.workers == {}
    assert at.stage(0, 0, 0)
    assert not at.stage(0, 0, 0)
    assert at.statistics.workers[0].batches == 1


def test_every_nth_step_asks_for_a_checksum(tmp_path: Path) -> None:
    at = Setting(tmp_path)
    at.training.checksum_every = 2
    for batch in range(4):
        at.training.take(0)
        at.announce(0, batch)
    assert [order.checksum for order in at.of("S0", OrderStep)] == [False, True]


def test_a_gradient_announced_twice_counts_once(at: Setting) -> None:
    at.training.take(0), at.training.take(0)
    for _ in range(3):
        at.announce(0, 0)
    assert at.of("S0", OrderStep) == []
    assert at.statistics.workers[0].batches == 1


@pytest.mark.parametrize(
    ("rows", "dense"),
    [([-1, 0], [0, 0]), ([0, 0], [-2, 0]), ([0, 9], [0, 0]), ([0, 0], [0, 1 << 40])],
)  # fmt: skip
def test_versions_that_cannot_be_are_refused_before_anything_changes(at: Setting, rows: Any, dense: Any) -> None:
    at.training.take(0)
    with pytest.raises(WireError, match="versions"):
        at.announce(0, 0, rows, dense)
    assert at.statistics.workers == {}
    at.announce(0, 0)
    assert at.statistics.workers[0].batches == 1


def test_staleness_is_counted_from_the_oldest_version_pulled(at: Setting) -> None:
    for batch in range(4):
        at.training.take(0)
        at.announce(0, batch, dense=(-1, -1))
    assert dict(at.statistics.staleness) == {0: 2, 1: 2}


def test_the_end_checks_the_accounts(at: Setting) -> None:
    while at.training.take(0):
        pass
    with pytest.raises(AccountingError, match="do not add up"):
        at.training.finish()


def test_the_end_applies_what_is_left(at: Setting) -> None:
    while at.training.take(0):
        pass
    for batch in range(5):
        at.announce(0, batch)
    at.training.finish()
    at.training.finish()  # again, by a coordinator that took over behind it: nothing more happens
    assert [(each.order.members, each.order.divisor) for each in at.of("S0", OrderStep)][-1] == (((4, 1.0),), 1.0)


def test_the_clock_runs_from_the_first_hand_out_to_the_last_announced_gradient(at: Setting) -> None:
    clock, now = at.training.clock, [10.0]
    clock.now = lambda: now[0]
    at.training.take(0)
    now[0] = 12.0
    at.training.take(1)
    assert clock.seconds == 0.0, "nobody has computed anything yet"
    for batch, worker, seconds in ((1, 1, 5.0), (0, 0, 9.0)):
        now[0] = 10.0 + seconds
        at.announce(worker, batch)
        assert clock.seconds == seconds
    now[0] = 30.0
    at.training.take(0)
    now[0] = 60.0
    at.training.forgo()  # past a switch's deadline
    assert clock.seconds == 9.0


def test_what_a_dead_worker_had_is_handed_out_again_when_every_server_knows(at: Setting) -> None:
    for worker in (0, 1, 1):
        assert at.training.take(worker)
    at.announce(1, 1)
    at.stage(0, 1, 2)
    assert at.training.ignore_worker(1) == [2]
    assert not at.stage(1, 1, 2), "the other part was on its way: it does not count"
    at.training.release_batches(1)
    at.training.release_batches(1)
    assert at.training.take(0) and not at.training.take(1)
    assert [(g.batch, g.token) for g in at.of("W0", Granted)] == [(0, 0), (2, 1)]
    assert not at.stage(0, 0, 2)
    assert at.stage(1, 0, 2), "both parts of the new owner are there"
    at.log.flush()
    assert [r.worker for r in read(at.path) if isinstance(r, LeftRecord)] == [1]


def test_a_batch_that_two_failed_workers_had_is_followed_by_another_one(tmp_path: Path) -> None:
    """In sync W0 gets W1's batch of step 1 unrequested, as it has begun that step; W2 has not, and asks for it."""
    at = Setting(tmp_path, samples=36, mode="sync", workers=3)
    for worker in range(3):
        assert at.training.take(worker)
    for worker in (0, 1):
        at.announce(worker, worker)
        assert at.training.take(worker)
    for worker in (1, 0):
        at.training.ignore_worker(worker)
        at.training.release_batches(worker)
    assert [grant.batch for grant in at.of("W0", Granted)] == [0, 3, 4]
    for batch in (2, 3, 4):
        at.announce(2, batch)
        assert at.training.requested(batch), "else its worker gets no further batch"
        assert at.training.take(2)
    assert [grant.batch for grant in at.of("W2", Granted)] == [2, 3, 4, 5]


def test_a_gradient_waits_for_whoever_takes_a_lost_servers_place(at: Setting) -> None:
    """Announced ones go on without their part there; others are announced once the new one has one."""
    missed: list[tuple[int, int, int]] = []
    at.training.phase.slices = StagedSlices(lambda *_: None, lambda *told: missed.append(told))
    for worker in (0, 1, 0):
        at.training.take(worker)
    at.announce(0, 0)
    at.stage(0, 1, 1)
    gone = at.channels["S0"]
    assert at.members.forget(gone)
    at.training.on_server_failure(0)
    assert not at.stage(1, 1, 1), "its part on S0 is gone, too"
    back = Recorder("server", 0, lambda: list(read(at.path)))
    at.members.channels["server", 0] = back
    assert at.training.on_server_replaced() == [0]
    assert [list(at.training.policy.leased_to(worker)) for worker in (0, 1)] == [[2], [1]]
    assert at.stage(0, 1, 1)
    [order] = [message for message in back.sent if isinstance(message, OrderStep)]
    assert [batch for batch, _ in order.order.members] == [0, 1] and not [
        m for m in gone.sent if isinstance(m, OrderStep)
    ]
    assert missed == [(0, 4, 0)]
