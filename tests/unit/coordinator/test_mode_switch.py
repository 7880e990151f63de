"""Moving the dense parameters while workers die: finished by another, or taken back; never in between, never a hang."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gbactl.config import RunConfig
from gbactl.coordinator.mode_switch import DenseMigration, ModeSwitch
from gbactl.coordinator.run_context import RunContext
from gbactl.coordinator.state import RunState
from gbactl.errors import ClusterError, ConfigError, GbactlError
from gbactl.wire.messages import DenseMoved, MoveDense


class Workers:
    """Three workers, seen by a migration; `script[i]` is what happens when it waits for the i-th time."""

    def __init__(self, *script: Callable[[Workers], None]) -> None:
        self.script = list(script)
        self.live = {0, 1, 2}
        self.failed_workers: list[int] = []
        self.asked: list[MoveDense] = []
        run = SimpleNamespace(
            cfg=RunConfig(), state=RunState(), members=self, fencing=self, hub=SimpleNamespace(now=lambda: 0.0),
            log_note=lambda: None,
        )  # fmt: skip
        self.migration = DenseMigration(cast(RunContext, run))

    def channels_of(self, role: str) -> dict[int, None]:
        assert role == "worker"
        return dict.fromkeys(sorted(self.live))

    def send_to_all(self, role: str, message: Any) -> None:
        assert self.migration.moving, "losses are borne meanwhile"
        self.asked.append(message)

    def move(self, to: str, source: str) -> bool:
        """Drive the move as the coordinator's loop does."""
        flow, held = self.migration.migrate(to, source), None
        while True:
            try:
                until = next(flow) if held is None else flow.send(held)
            except StopIteration as end:
                return bool(end.value)
            if not until.condition() and self.script:
                self.script.pop(0)(self)
            held = until.condition()

    def die(self, worker: int) -> None:
        self.live.discard(worker)
        self.failed_workers.append(worker)

    def answer(self, *workers: int, turn: int | None = None) -> None:
        for worker in workers:
            self.migration.on_moved(DenseMoved(worker, self.asked[-1].request if turn is None else turn))


def test_everybody_takes_them_over() -> None:
    workers = Workers(lambda w: w.answer(0, 1, 2))
    assert workers.move("workers", "servers")
    assert workers.asked == [MoveDense("workers", -1, 1)] and not workers.migration.moving


def test_one_gives_them_to_the_servers() -> None:
    workers = Workers(lambda w: w.answer(0, 1, 2))
    assert workers.move("servers", "workers")
    assert workers.asked == [MoveDense("servers", 0, 1)]


def test_a_worker_dies_on_the_way_to_the_workers() -> None:
    def first(w: Workers) -> None:
        w.answer(0)
        w.die(1)

    def second(w: Workers) -> None:
        w.answer(2, turn=1)  # of the move that was taken back
        assert w.asked[-1] == MoveDense("servers", -1, 2), "the servers have them still: nobody gives"
        w.die(0)
        w.answer(2)

    workers = Workers(first, second)
    assert not workers.move("workers", "servers")
    assert not workers.script


def test_the_giver_dies_and_the_next_one_gives() -> None:
    def first(w: Workers) -> None:
        w.answer(1)
        w.die(0)

    workers = Workers(first, lambda w: w.die(1), lambda w: w.answer(2))
    assert workers.move("servers", "workers")
    assert [message.giver for message in workers.asked] == [0, 1, 2]


def test_a_giver_that_dies_after_it_gave_needs_nobody() -> None:
    def first(w: Workers) -> None:
        w.answer(0)
        w.die(0)
        w.answer(1, 2)

    workers = Workers(first)
    assert workers.move("servers", "workers")
    assert len(workers.asked) == 1


def test_another_than_the_giver_dies() -> None:
    def first(w: Workers) -> None:
        w.die(2)
        w.answer(0, 1)

    workers = Workers(first)
    assert workers.move("servers", "workers") and len(workers.asked) == 1


@pytest.mark.parametrize("home", ["servers", "workers"])
def test_who_does_not_answer_is_named(home: str) -> None:
    workers = Workers(lambda w: w.answer(0, 2))
    with pytest.raises(ClusterError, match=rf"^W1 did not answer when .* to the {home}"):
        workers.move(home, "workers" if home == "servers" else "servers")
    assert not workers.migration.moving


def test_replicas_are_given_up_without_a_giver_since_the_servers_hold_what_they_came_to() -> None:
    workers = Workers(lambda w: w.answer(0, 1, 2))
    assert workers.move("servers", "replicas")
    assert workers.asked == [MoveDense("servers", -1, 1)]


def test_from_the_workers_to_replicas_by_way_of_the_servers() -> None:
    workers = Workers(lambda w: w.answer(0, 1, 2), lambda w: w.answer(0, 1, 2))
    assert workers.move("replicas", "workers")
    assert workers.asked == [MoveDense("servers", 0, 1), MoveDense("replicas", -1, 2)]


@pytest.mark.parametrize("of", ["servers", "replicas"])
def test_who_dies_on_the_way_leaves_them_where_they_were(of: str) -> None:
    workers = Workers(lambda w: w.die(1), lambda w: w.answer(0, 2))
    to = "replicas" if of == "servers" else "workers"
    assert not workers.move(to, of)
    assert [message.home for message in workers.asked] == [to, of]


def test_between_workers_and_replicas_there_is_no_way_back() -> None:
    workers = Workers(lambda w: w.answer(0, 1, 2), lambda w: w.die(1))
    with pytest.raises(ClusterError, match=r"^A worker failed while the dense parameters moved from the workers"):
        workers.move("replicas", "workers")


@pytest.mark.parametrize("kind", [ConfigError, GbactlError])
def test_a_mode_that_fails_in_its_dry_run_is_refused_and_the_run_goes_on(
    monkeypatch: pytest.MonkeyPatch, kind: type[GbactlError]
) -> None:
    def fail(*_: Any) -> None:
        raise kind("mode.target=own.Own fails in a dry run (MemoryError).")

    monkeypatch.setattr("gbactl.coordinator.mode_switch.switched_config", fail)
    told: list[tuple[str, dict[str, Any]]] = []
    run = SimpleNamespace(cfg=None, current=None, send_event=lambda *event: told.append(event))
    ModeSwitch.ask(cast(ModeSwitch, SimpleNamespace(run=run)), {"id": 3, "mode": {"name": "own"}})
    why = "mode.target=own.Own fails in a dry run (MemoryError)."
    assert told == [("switch", {"id": 3, "state": "refused", "why": why})]


@pytest.mark.parametrize(
    ("asked", "due", "told"),
    [
        ({}, "bsp", [{"to": "bsp"}]),
        ({"id": 3, "to": "gba"}, None, [{"id": 3, "to": "gba"}]),
        ({}, None, []),
    ],
)
def test_a_switch_that_the_run_ends_before_is_reported(
    asked: dict[str, Any], due: str | None, told: list[dict[str, Any]]
) -> None:
    events: list[tuple[str, dict[str, Any]]] = []
    current = RunConfig()
    run = SimpleNamespace(current=current, step=9, send_event=lambda *event: events.append(event))
    plan = SimpleNamespace(next=due and SimpleNamespace(to=due))
    ModeSwitch.ended(
        cast(ModeSwitch, SimpleNamespace(run=run, plan=plan, _switch_request=asked, _report=lambda first: None))
    )
    end = {"from": current.mode.name, "step": 9, "state": "stayed", "why": "the run ended before it"}
    assert events == [("switch", {**each, **end}) for each in told]
