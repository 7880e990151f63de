"""Controller of switch=auto: its arithmetic and decisions, also on a cluster of threads in which a worker dies."""

from __future__ import annotations

import itertools
import json
import random
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gbactl.config import ClusterConfig, ModeConfig, ModelConfig, RunConfig, SwitchConfig, TrainConfig, check
from gbactl.switching.auto_controller import (
    AUTO_FILE,
    FEW,
    GBA,
    MOST,
    SYNC,
    AutoController,
    AutoOptions,
    RecentValues,
    SwitchDecision,
    expected_maximum,
)
from gbactl.wire.messages import OrderStep
from gbactl.worker.loop import WorkerLoop
from tests.support import small_data
from tests.support.deaths import Death
from tests.support.memory_cluster import Killed, run_in_memory
from tests.support.modes import EVERY

EAGER: dict[str, float] = {"window": 10.0, "margin": 0.0, "hysteresis": 0.1, "minimum_stay": 0.0}
COLUMNS = st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=4), min_size=1, max_size=4)


def crew(*seconds: float, mode: str = SYNC, **options: float) -> AutoController:
    """Workers whose gradients of 10 samples take so long, seen at second 0."""
    made = AutoController(10 * len(seconds), 10, AutoOptions(**{**EAGER, **options}))
    made.begin(0.0, mode)
    for _ in range(8):
        for worker, took in enumerate(seconds):
            made.add_measurement(0.0, worker, took, 10)
    return made


def steps(controller: AutoController, mode: str, every: float, samples: int, begin: float = 0.0) -> float:
    """A phase of ten steps, one `every` so many seconds, whose gradients take 1 s; when the last one was."""
    controller.begin(begin, mode)
    for number in range(1, 11):
        for worker in seen(controller):
            controller.add_measurement(begin + number * every, worker, 1.0, 10)
        controller.on_step(begin + number * every, number * samples)
    return begin + 10 * every


def seen(controller: AutoController) -> set[int]:
    """The workers of which there are measurements."""
    return set(controller._seconds_per_sample)


def looked(controller: AutoController, now: float = 0.0) -> SwitchDecision:
    look = controller.decide(now, seen(controller))
    assert look is not None
    return look


def test_sync_waits_for_the_slowest_and_gba_adds_up() -> None:
    look = looked(crew(1.0, 1.0, 1.0, 4.0))
    assert (look.slowest, look.sync) == (pytest.approx(4.0), pytest.approx(40 / 4.0))
    assert look.gba == pytest.approx(3 * 10 + 2.5)
    assert look.wanted == GBA and "3.25 of sync, more than 1.10" in look.reason


def test_nothing_is_said_before_everybody_was_seen_a_few_times() -> None:
    made = AutoController(20, 10, AutoOptions())
    made.begin(0.0, SYNC)
    for worker in (0, 0, 0, 0, 1, 1, 1):
        made.add_measurement(0.0, worker, 1.0, 10)
        assert made.decide(99.0, {0, 1}) is None
    made.add_measurement(0.0, 1, 1.0, 10)
    assert looked(made, 99.0).workers == 2


@pytest.mark.parametrize("mode", sorted(set(EVERY) - {SYNC, GBA}))
def test_nothing_is_said_in_another_mode(mode: str) -> None:
    assert crew(1.0, 4.0, mode=mode).decide(99.0, {0, 1}) is None


def test_a_share_is_required_and_no_hurry() -> None:
    made = crew(1.0, 1.0, 1.0, 1.3, margin=0.1, hysteresis=0.1)
    look = looked(made)
    assert look.gba / look.sync == pytest.approx(1.225, abs=0.01) and look.wanted == GBA
    for more in ({"margin": 0.2}, {"hysteresis": 0.2}):
        assert looked(crew(1.0, 1.0, 1.0, 1.3, **{"margin": 0.1, **more})).wanted == SYNC
    early = crew(1.0, 1.0, 1.0, 4.0, minimum_stay=30.0)
    assert looked(early, 29.0).wanted == SYNC and "sync began 29 s ago" in looked(early, 29.0).reason
    assert looked(early, 30.0).wanted == GBA


def test_a_phase_in_the_same_mode_is_the_same_stay() -> None:
    made = crew(1.0, 1.0, 1.0, 4.0, minimum_stay=30.0)
    made.begin(20.0, SYNC)
    assert looked(made, 31.0).wanted == GBA
    made.begin(32.0, GBA)
    made.begin(50.0, SYNC)
    assert looked(made, 60.0).wanted == SYNC


def test_what_sync_adds_is_seen_in_sync_and_remembered() -> None:
    """Steps of 1 s of computing take 1.5 s; a worker that slows down to 4 s later makes that 4.5 s."""
    made = crew(1.0, 1.0, 1.0, 1.0)
    end = steps(made, SYNC, 1.5, 40)
    look = looked(made, end)
    assert (look.sync, look.delivered) == (pytest.approx(40 / 1.5), pytest.approx(40 / 1.5))
    assert look.overhead == pytest.approx(0.5) and look.efficiency is None
    assert look.gba == pytest.approx(40 / 1.5), "not known: the same share of the promise"
    made.begin(end, GBA)
    for _ in range(8):
        made.add_measurement(end + 20.0, 3, 4.0, 10)
    later = looked(made, end + 20.0)
    assert (later.delivered, later.overhead, later.sync) == (None, pytest.approx(0.5), pytest.approx(40 / 4.5))


def test_what_gba_delivers_of_its_promise_is_seen_in_gba_and_remembered() -> None:
    made = crew(1.0, 1.0, 1.0, 1.0)
    end = steps(made, GBA, 2.0, 40)
    look = looked(made, end)
    assert (look.gba, look.efficiency, look.overhead) == (pytest.approx(20.0), pytest.approx(0.5), None)
    assert look.sync == pytest.approx(40.0) and look.wanted == SYNC
    back = steps(made, SYNC, 1.25, 40, end)
    look = looked(made, back)
    assert (look.sync, look.gba, look.wanted) == (pytest.approx(32.0), pytest.approx(20.0), SYNC)


def test_a_step_that_does_not_come_counts_against_the_mode() -> None:
    made = crew(1.0, 1.0)
    end = steps(made, SYNC, 1.0, 20)
    assert looked(made, end + 0.9).delivered == pytest.approx(20.0)
    assert looked(made, end + 10.0).delivered == pytest.approx(60 / 12), "four steps, and 10 s"


def test_what_is_delivered_is_counted_anew_in_every_phase() -> None:
    made = crew(1.0, 1.0)
    end = steps(made, SYNC, 1.0, 20)
    made.begin(end + 500.0, SYNC)  # after an evaluation
    assert looked(made, end + 500.0).delivered is None
    assert looked(made, steps(made, SYNC, 2.0, 20, end + 500.0)).delivered == pytest.approx(10.0)


def test_workers_are_taken_as_they_are_now() -> None:
    made = crew(1.0, 1.0, 4.0)
    for second in range(5, 25):
        for worker in range(3):
            made.add_measurement(float(second), worker, 1.0, 10)
    assert looked(made, 24.0).gba == pytest.approx(30.0)
    look = made.decide(24.0, {0, 1})
    assert look is not None and (look.gba, look.workers) == (pytest.approx(20.0), 2)
    assert made.decide(24.0, {0, 1, 2}) is None, "its successor was not seen yet"


def test_other_batch_sizes_count_by_their_samples() -> None:
    made = AutoController(40, 20, AutoOptions(**EAGER))
    made.begin(0.0, GBA)
    for _ in range(4):
        made.add_measurement(0.0, 0, 1.0, 10)
        made.add_measurement(0.0, 1, 2.0, 10)
    look = looked(made)
    assert (look.gba, look.slowest, look.sync) == (15.0, pytest.approx(4.0), pytest.approx(10.0))


def simulated(
    controller: AutoController, factors: Callable[[float], Sequence[float]], until: float, overhead: float = 0.1
) -> list[tuple[float, str]]:
    """A cluster that does what the controller says: (time, mode) of every switch.

    `factors` are the workers' step times at a time; every gba gradient takes `overhead` more, as a sync step does."""
    now, mode, switches, batch = 0.0, SYNC, list[tuple[float, str]](), controller.local_batch
    while now < until:
        controller.begin(now, mode)
        gradients, due = 0, dict.fromkeys(range(len(factors(now))), now)
        while now < until:
            times = factors(now)
            if mode == SYNC:
                now += max(times) + overhead
                for worker, seconds in enumerate(times):
                    controller.add_measurement(now, worker, seconds, batch)
                gradients += len(times)
            else:
                worker = min(due, key=lambda w: due[w])
                now = max(now, due[worker])
                controller.add_measurement(now, worker, times[worker], batch)
                due[worker] = now + times[worker] + overhead
                gradients += 1
            if gradients % len(times) == 0:
                controller.on_step(now, batch * gradients)
            look = controller.decide(now, due.keys())
            if look is not None and look.wanted != mode:
                mode = look.wanted
                switches.append((now, mode))
                break
    return switches


def test_a_straggler_that_comes_and_goes() -> None:
    def factors(now: float) -> list[float]:
        return [1.0] * 7 + [6.0 if 100 <= now < 200 else 1.0]

    made = AutoController(80, 10, AutoOptions(window=10.0, minimum_stay=5.0, hysteresis=0.05))
    (there, first), (back, second) = simulated(made, factors, 400.0)
    assert (first, second) == (GBA, SYNC)
    assert 100 < there < 130 and 200 < back < 230


@given(st.integers(0, 1 << 16), st.floats(0.0, 0.3))
def test_a_calm_cluster_never_switches(seed: int, spread: float) -> None:
    """Step times that vary by a few percent, whatever the seed."""
    draw = random.Random(seed)
    made = AutoController(40, 10, AutoOptions(minimum_stay=0.0, window=5.0))
    assert simulated(made, lambda _: [1.0 + 0.2 * spread * draw.random() for _ in range(4)], 60.0) == []


@given(st.integers(0, 1 << 16))
def test_rates_that_hover_around_a_threshold_do_not_flap(seed: int) -> None:
    """gba / sync wanders within what hysteresis allows: at most one switch, however short the stay."""
    draw = random.Random(seed)
    options = AutoOptions(window=1e-6, margin=0.3, hysteresis=0.15, minimum_stay=0.0)
    made = AutoController(20, 10, options)
    middle = (options.enter * options.leave) ** 0.5
    mode, switches = SYNC, 0
    for number in range(200):
        made.begin(float(number), mode)
        ratio = draw.uniform(options.leave * 1.01, middle * 1.12 if number else 9.0)
        slow = 2 * ratio - 1  # of two workers, one of 1 s: gba / sync = (1 + 1 / slow) / (2 / slow)
        for _ in range(4):
            made.add_measurement(float(number), 0, 1.0, 10)
            made.add_measurement(float(number), 1, slow, 10)
        look = looked(made, float(number))
        assert look.gba / look.sync == pytest.approx(ratio)
        switches += look.wanted != mode
        mode = look.wanted
    assert switches <= 1


@given(st.lists(st.tuples(st.floats(0.1, 5.0), st.floats(0.2, 20.0)), min_size=1, max_size=100), st.floats(0.0, 20.0))
def test_nobody_stays_shorter_than_the_minimum(changes: list[tuple[float, float]], stay: float) -> None:
    made = AutoController(20, 10, AutoOptions(window=1.0, minimum_stay=stay))
    now, mode, since = 0.0, SYNC, 0.0
    made.begin(now, mode)
    for gap, slow in changes:
        now += gap
        for _ in range(4):
            made.add_measurement(now, 0, 1.0, 10)
            made.add_measurement(now, 1, slow, 10)
        look = looked(made, now)
        if look.wanted != mode:
            assert now - since >= stay
            mode, since = look.wanted, now
            made.begin(now, mode)


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("add_measurement"), st.integers(0, 2), st.floats(1e-3, 1e3), st.integers(0, 20)),
            st.tuples(st.just("on_step"), st.integers(0, 1000)),
            st.tuples(st.just("begin"), st.sampled_from([SYNC, GBA, "bsp"])),
            st.tuples(st.just("decide"), st.sets(st.integers(0, 2))),
        ),
        max_size=200,
    ),
    st.floats(0.0, 3.0),
)
def test_whatever_happens_a_look_has_positive_numbers(events: list[Any], gap: float) -> None:
    made = AutoController(30, 10, AutoOptions())
    now = 0.0
    for name, *given_ in events:
        now += gap
        look = getattr(made, name)(now, *given_)
        if isinstance(look, SwitchDecision):
            assert look.sync > 0 and look.gba > 0 and look.slowest > 0 and look.wanted in (SYNC, GBA)
            assert look.efficiency is None or 0 < look.efficiency <= 1
            assert look.overhead is None or look.overhead >= 0


@given(COLUMNS)
def test_the_expected_maximum_is_that_of_every_combination(columns: list[list[int]]) -> None:
    exact = statistics.fmean(max(draw) for draw in itertools.product(*columns))
    assert expected_maximum(columns) == pytest.approx(exact)


@given(st.lists(st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=30), min_size=1, max_size=30))
def test_it_lies_between_the_slowest_mean_and_the_largest_value(columns: list[list[float]]) -> None:
    found = expected_maximum(columns)
    assert max(map(statistics.fmean, columns)) <= found * (1 + 1e-9)
    assert found <= max(map(max, columns)) * (1 + 1e-9)


@given(st.lists(st.floats(0.0, 10.0), min_size=1, max_size=200), st.floats(0.01, 50.0))
def test_what_is_old_is_forgotten_but_for_a_few(gaps: list[float], seconds: float) -> None:
    recent, times = RecentValues(seconds), list(itertools.accumulate(gaps))
    for number, time in enumerate(times):
        recent.add(time, float(number))
    kept, now = recent.values, times[-1]
    assert kept == [float(n) for n in range(len(times) - len(kept), len(times))]
    young = [n for n, time in enumerate(times) if time >= now - seconds]
    assert len(kept) == min(MOST, max(len(young), min(FEW, len(times))))


@pytest.mark.parametrize("failover", [False, True])
def test_a_lost_worker_is_not_counted_and_sync_not_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failover: bool
) -> None:
    """Nor by a coordinator that takes over after ten of 42 steps."""
    plain = WorkerLoop._train
    if failover:
        Death(monkeypatch, tmp_path / "run", 20, of=OrderStep)

    def train(self: Any, item: Any) -> None:
        if self.client.index == 1:
            raise Killed
        plain(self, item)

    monkeypatch.setattr(WorkerLoop, "_train", train)
    cfg = RunConfig(
        mode=ModeConfig("gba", prefetch="none"),
        model=ModelConfig(dim=4, hidden=[16, 8]),
        cluster=ClusterConfig(workers=3, servers=2, lost_worker="continue"),
        train=TrainConfig(global_batch=192, eval_batch=500),
        switch=SwitchConfig(name="auto", every=0.001, window=1.0, margin=9.0, minimum_stay=0.0),  # sync is preferred
        seed=5,
    )
    result = run_in_memory(check(cfg), small_data.prepared(tmp_path / "cache", 8000), tmp_path / "run")
    looks = [json.loads(line) for line in (tmp_path / "run" / AUTO_FILE).read_text().splitlines()]
    assert looks[-1]["step"] > 20 and {look["workers"] for look in looks} == {2}
    assert {look["wanted"] for look in looks} == {"sync"}
    why = {look["obstacle"] for look in looks}
    assert why - {"the run has handed out its last batch"} == {"W1 died, and sync needs every worker"}
    assert {phase["mode"] for phase in result["phases"]} == {"gba"} and result["auto"]["switched"] == []
    assert (result["auto"]["looks"], result["auto"]["last"]) == (len(looks), looks[-1])
    samples = result["samples"]
    assert samples["read"] == samples["trained"] + samples["decayed"] == 8000
