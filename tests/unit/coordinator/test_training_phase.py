"""A training phase as a fold: a list of events, a list of expected commands; slices lost with a shard."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gbactl.coordinator.event_log import AnnounceRecord, FinishRecord, JoinedRecord, LeftRecord, StopRecord
from gbactl.coordinator.statistics import Statistics
from gbactl.coordinator.training_phase import (
    ApplyStep,
    Command,
    DiscardGradient,
    GiveUpBatch,
    HandOut,
    StagedSlices,
    TrainingPhase,
)
from gbactl.policies.hop_bw import HopBwOptions
from gbactl.policies.policy import Drop, Grant, Member, Phase, Step, make
from tests.support.modes import WITHOUT_REPLICAS


def phase_of(mode: str, samples: int, workers: int = 2, global_batch: int = 8) -> TrainingPhase:
    """Batches of 4."""
    options = HopBwOptions(backup=1) if mode == "hop_bw" else None
    policy = make(mode, Phase(samples, 4, global_batch, 0, tuple(range(workers))), options)
    return TrainingPhase(policy, lambda finished: 1.0 / (1 + finished), Statistics())


def announced(worker: int, batch: int, version: int = 0) -> AnnounceRecord:
    return AnnounceRecord(worker, batch, (version,), (version,))


class Take(NamedTuple):
    """A worker asks for its next batch."""

    worker: int


class Forgo(NamedTuple):
    """The batches in flight are given up."""


def follows(phase: TrainingPhase, event: Any) -> Sequence[Command]:
    if isinstance(event, Take):
        grant = phase.policy.take(event.worker)
        return [] if grant is None else [HandOut(event.worker, grant)]
    return phase.forgo() if isinstance(event, Forgo) else phase.apply(event)


def driven(phase: TrainingPhase, *events: Any) -> list[Command]:
    found: list[Command] = []
    for event in events:
        for command in follows(phase, event):
            phase.account(command)
            found.append(command)
    return found


def of(commands: list[Command], kind: type[Any]) -> list[Any]:
    return [command for command in commands if isinstance(command, kind)]


def test_gba_weighs_a_full_buffer_by_its_tokens() -> None:
    """M = 2, iota = 3: batch 0, of step 0, comes when five steps have been applied, and counts for nothing."""
    phase = phase_of("gba", 48, global_batch=8)
    handed = driven(phase, *(Take(0) for _ in range(11)))
    assert [(each.grant.batch, each.grant.token) for each in of(handed, HandOut)] == [(n, n // 2) for n in range(11)]
    early = driven(phase, *(announced(0, batch) for batch in range(1, 11)))
    assert [[m.batch for m in each.step.members] for each in of(early, ApplyStep)] == [
        [n, n + 1] for n in range(1, 10, 2)
    ]
    [late] = driven(phase, Take(0), announced(0, 0), announced(0, 11))[1:]
    assert late == ApplyStep(Step(5, (Member(0, 0, 0.0, 4, 5), Member(11, 0, 1.0, 4, 0)), 2.0), 1.0 / 41)
    assert phase.finished.ledger.decayed == 4 and phase.finished.ledger.trained == 44


@pytest.mark.parametrize(
    ("mode", "events", "expected"),
    [
        ("async", [Take(0), announced(0, 0)], [
            HandOut(0, Grant(0, 0, 0, 4)), ApplyStep(Step(0, (Member(0, 0, 1.0, 4, 0),), 1.0), 1.0),
        ]),
        ("hop_bw", [Take(0), Take(1), announced(1, 1), announced(0, 0)], [
            HandOut(0, Grant(0, 0, 0, 4)), HandOut(1, Grant(1, 0, 4, 4)),
            ApplyStep(Step(0, (Member(1, 1, 1.0, 4, 0),), 1.0), 1.0), DiscardGradient(0, Drop(0, 4)),
        ]),
        ("gba", [Take(0), Take(1), Forgo()], [
            HandOut(0, Grant(0, 0, 0, 4)), HandOut(1, Grant(1, 0, 4, 4)),
            GiveUpBatch(0, 0), GiveUpBatch(1, 1),
        ]),
        ("gba", [Take(0), Take(1), LeftRecord(0), Take(1), Take(0), JoinedRecord(0), Take(0)], [
            HandOut(0, Grant(0, 0, 0, 4)), HandOut(1, Grant(1, 0, 4, 4)), HandOut(1, Grant(0, 1, 0, 4)),
            HandOut(0, Grant(2, 1, 8, 4)),
        ]),
        ("bsp", [Take(0), StopRecord(0), Take(0), Take(0), announced(0, 0), announced(0, 1), FinishRecord()], [
            HandOut(0, Grant(0, 0, 0, 4)), HandOut(0, Grant(1, 0, 4, 4)),
            ApplyStep(Step(0, (Member(0, 0, 1.0, 4, 0), Member(1, 0, 1.0, 4, 0)), 2.0), 1.0),
        ]),
    ],
)  # fmt: skip
def test_what_follows_from_what(mode: str, events: list[Any], expected: list[Command]) -> None:
    assert driven(phase_of(mode, 20), *events) == expected


def test_a_command_takes_effect_when_it_is_settled() -> None:
    """A checkpoint between two commands of one event finds the state of that moment."""
    phase = phase_of("async", 8)
    driven(phase, Take(0))
    [command] = phase.apply(announced(0, 0))
    assert phase.policy.step == 1 and phase.finished.ledger.trained == 0
    phase.account(command)
    assert phase.finished.ledger.trained == 4 and phase.statistics.samples_at == [0, 4]


def test_the_end_applies_what_is_left_over() -> None:
    phase = phase_of("gba", 4)
    driven(phase, Take(0), announced(0, 0))
    assert not phase.closed
    [left] = driven(phase, FinishRecord())
    assert left == ApplyStep(Step(0, (Member(0, 0, 1.0, 4, 0),), 1.0), 1.0) and phase.closed


@given(
    mode=st.sampled_from(WITHOUT_REPLICAS), samples=st.integers(1, 90),
    choices=st.lists(st.integers(0, 99), max_size=120),
)  # fmt: skip
def test_whatever_happens_every_sample_has_one_fate(mode: str, samples: int, choices: list[int]) -> None:
    """Take, announce, lose, bring back, stop; then to the end."""
    phase, fates = phase_of(mode, samples, workers=3, global_batch=12), deque[int]()

    def do(event: Any) -> None:
        for command in driven(phase, event):
            if isinstance(command, ApplyStep):
                fates.extend(member.batch for member in command.step.members)
            elif isinstance(command, DiscardGradient):
                fates.append(command.drop.batch)

    def go_on(choice: int) -> None:
        leases = sorted((batch, worker) for worker, held in phase.policy.leases.items() for batch in held)
        if leases and choice % 2:
            batch, worker = leases[choice % len(leases)]
            do(announced(worker, batch, phase.policy.step))
        else:
            for worker in sorted(phase.policy.live):
                do(Take(worker))

    for choice in choices:
        live = sorted(phase.policy.live)
        if choice == 0:
            do(StopRecord(0))
        elif choice < 6 and len(live) > 1:
            do(LeftRecord(live[choice % len(live)]))
        elif choice < 12:
            for worker in {0, 1, 2} - phase.policy.live:
                do(JoinedRecord(worker))
        else:
            go_on(choice)
    for turn in range(10 * samples + 10):
        if phase.policy.idle:
            break
        go_on(turn)
    do(FinishRecord())
    phase.policy.ledger.check()
    assert sorted(fates) == list(range(phase.policy.phase.batches))
    assert phase.finished.ledger.finished == phase.policy.ledger.read == phase.policy.phase.samples


def test_parts_are_applied_missed_or_forgotten() -> None:
    hit: list[tuple[int, int]] = []
    missed: list[tuple[int, int, int]] = []
    parts = StagedSlices(lambda *told: hit.append(told), lambda *told: missed.append(told))
    parts.add(0, [5, 7])
    parts.add(1, [3, ~4])  # its second part had gone to a server that was lost before
    parts.add(2, [9, 9])
    parts.add(3, [2, 2])
    parts.discard(2)
    parts.report_step(0, 32, 1.0)
    parts.on_server_failure(1)
    parts.on_server_failure(1)
    assert parts.unapplied == [1, 3]
    parts.report_step(1, 32, 0.5)
    parts.report_step(3, 20, 0.0)  # decayed: it would have changed nothing
    assert hit == [(0, 5), (1, 7), (0, 3)] and missed == [(1, 32, 4)] and parts.unapplied == []


def test_what_a_note_contains_is_not_told_again() -> None:
    hit: list[tuple[int, int]] = []
    parts = StagedSlices(lambda *told: hit.append(told), lambda *_: None)
    for batch in range(2):
        parts.add(batch, [5 + batch, 7])
    parts.reported = True
    parts.report_step(0, 32, 1.0)
    parts.reported = False
    assert hit == [] and parts.unapplied == [1]
    parts.report_step(1, 32, 1.0)
    assert hit == [(0, 6), (1, 7)]


def test_a_part_without_rows_is_lost_like_any_other() -> None:
    missed: list[tuple[int, int, int]] = []
    parts = StagedSlices(lambda *_: None, lambda *told: missed.append(told))
    parts.add(0, [0])
    parts.on_server_failure(0)
    parts.report_step(0, 8, 1.0)
    assert missed == [(0, 8, 0)]
