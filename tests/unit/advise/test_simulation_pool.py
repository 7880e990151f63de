"""Schedule of the simulations: a seed's base before its modes, and as many seeds as fit into the time."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import pytest

from gbactl.advise.sample import Sample
from gbactl.advise.simulation_jobs import Outcome, Took, simulate
from gbactl.advise.simulation_pool import FEWEST_SEEDS, MOST_SEEDS, Budget, Schedule, result_of
from gbactl.errors import ClusterError
from tests.support.simulated_runs import config

MODES = {mode: config(mode) for mode in ("sync", "gba", "async")}
SAMPLE = Sample(Path(), 0, 1, 1, 1, 1)


class FakePool:
    """Pool that has done a call as soon as somebody waits for it."""

    jobs = 2

    def __init__(self, seconds: float) -> None:
        self.seconds, self.calls, self.most, self.now = seconds, list[str](), 0, 0.0

    def submit(self, call: Any, cfg: Any, sample: Sample, folder: Path, base: Path | None = None) -> Future[Any]:
        self.calls.append(folder.name)
        if base is not None:
            assert base.name == f"base-s{cfg.seed}" and base.name in self.calls
        future = Future[Any]()
        took = Took(0.0, 0.0, self.seconds)
        future.set_result(Outcome(cfg.mode.name, cfg.seed, 1.0, took, {}) if call is simulate else self.seconds)
        return future

    def first_done(self, futures: Any) -> set[Future[Any]]:
        self.most = max(self.most, len(futures))
        self.now += self.seconds / self.jobs
        return {next(iter(futures))}


def run(pool: FakePool, budget: Budget, *kept: str) -> list[Outcome]:
    seconds, heard = dict.fromkeys(MODES, 10.0), list[Outcome]()

    def narrow(outcomes: Sequence[Outcome]) -> Sequence[str]:
        assert len({each.seed for each in outcomes}) >= FEWEST_SEEDS
        return kept

    folder = Path("advice")
    made = Schedule(pool, MODES, SAMPLE, folder, 10.0, seconds, budget, heard.append, narrow)  # type: ignore[arg-type]
    assert made.run() == heard
    return heard


def test_every_seed_has_all_modes_from_its_base_two_at_a_time() -> None:
    pool = FakePool(10.0)
    found = run(pool, Budget(0.0, 4))
    first = MODES["sync"].seed
    assert {(each.mode, each.seed - first) for each in found} == {(m, s) for m in MODES for s in range(4)}
    assert len(pool.calls) == len(set(pool.calls)) == 4 * 4 and pool.most == 2


@pytest.mark.parametrize(
    ("left", "seconds", "seeds"),
    [(-1.0, 10.0, [3]), (1e6, 10.0, [MOST_SEEDS]), (120.0, 10.0, [6, 7, 8]), (120.0, 40.0, [3])],
)
def test_modes_that_matter_have_as_many_seeds_as_fit(
    monkeypatch: pytest.MonkeyPatch, left: float, seconds: float, seeds: list[int]
) -> None:
    """The first seeds take 60 s, each further one of two modes 15 s."""
    pool = FakePool(seconds)
    monkeypatch.setattr(time, "monotonic", lambda: pool.now)
    counts = Counter(each.mode for each in run(pool, Budget(left), "sync", "gba"))
    assert counts["async"] == FEWEST_SEEDS
    assert counts["sync"] == counts["gba"] and counts["gba"] in seeds


def test_where_no_mode_matters_the_first_seeds_are_enough() -> None:
    assert len(run(FakePool(10.0), Budget(1e9))) == FEWEST_SEEDS * len(MODES)


def test_a_process_that_dies_is_told() -> None:
    future = Future[Any]()
    future.set_exception(BrokenProcessPool())
    with pytest.raises(ClusterError, match="type --jobs 1"):
        result_of(future)
