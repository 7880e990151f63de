"""switch=auto on the virtual cluster: a straggler's window, a calm cluster, what is noted of it."""

from __future__ import annotations

import dataclasses
import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from gbactl.config import RunConfig, SwitchConfig, check
from gbactl.coordinator.mode_switch import ModeSwitch
from gbactl.data.cache import prepare
from gbactl.switching.auto_controller import AUTO_FILE
from gbactl.wire.messages import Event
from tests.support.memory_cluster import run_in_memory
from tests.support.simulated_runs import DATA, adds_up, config, run
from tests.unit.simulation.test_switch_within_a_day import infos, no_sample_twice, unchanged

COST: dict[str, Any] = {"workers_per_host": 1, "servers_on": "own", "batch_us": 5000.0, "allreduce_us": 300.0}
FAST = SwitchConfig(name="auto", every=0.05, window=0.3, minimum_stay=0.1, margin=0.3, hysteresis=0.1)


def prepared(days: int, cache: Path) -> Path:
    return prepare({**DATA, "days": days + 1, "rows_per_day": 20000, "cache": str(cache)})


@pytest.fixture(scope="module")
def one_day(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepared(1, tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="module")
def two_days(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepared(2, tmp_path_factory.mktemp("cache"))


def auto(mode: str = "sync", switch: SwitchConfig = FAST, **more: Any) -> RunConfig:
    cfg = config(mode, hard=False, **{"cost": COST, "faults": WINDOW, **more})
    return check(dataclasses.replace(cfg, switch=switch))


#: seconds since the worker's first batch; two days of 157 steps take 2.2 s where nobody is slow
WINDOW = [{"kind": "window", "workers": [1], "factor": 6.0, "from": 0.5, "until": 1.2}]


@dataclasses.dataclass(frozen=True)
class Ran:
    """A run of `auto()`: its folder and all its events."""

    folder: Path
    events: list[Event]

    @property
    def result(self) -> dict[str, Any]:
        [result] = [event.fields for event in self.events if event.name == "result"]
        return result


@pytest.fixture(scope="module")
def straggler(two_days: Path, tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """A worker that is slow for some time: read by several tests, changed by none."""
    ran = Ran(tmp_path_factory.mktemp("straggler"), [])
    run(auto(), two_days, ran.folder, ran.events)
    return ran


def looks(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / AUTO_FILE).read_text().splitlines()]


def test_a_straggler_for_some_time_is_met_with_gba_for_that_time(straggler: Ran) -> None:
    result = straggler.result
    modes = [phase["mode"] for phase in result["phases"]]
    changes = [new for old, new in itertools.pairwise(["", *modes]) if new != old]
    assert changes == ["sync", "gba", "sync"] and result["mode"] == "sync>gba@auto>sync@auto"
    assert result["samples"]["trained"] + result["samples"]["decayed"] == 2 * 20000
    assert unchanged(straggler.folder) == 2
    no_sample_twice(straggler.folder, [20000] * 2)
    there, back = result["auto"]["switched"]
    assert (there["mode"], there["wanted"], back["mode"], back["wanted"]) == ("sync", "gba", "gba", "sync")
    assert 0.5 < there["at"] < 1.0 and 1.2 < back["at"] < 1.9
    assert there["gba"] > 1.43 * there["sync"] and back["gba"] < 1.19 * back["sync"]


def test_every_look_is_noted_with_its_numbers_and_told(straggler: Ran) -> None:
    events, result, noted = straggler.events, straggler.result, looks(straggler.folder)
    assert noted == [event.fields for event in events if event.name == "auto"]
    assert all(b["at"] - a["at"] >= FAST.every * 0.99 for a, b in itertools.pairwise(noted))
    assert len(noted) > 30
    assert {"day", "step", "samples", "sync", "gba", "delivered", "slowest", "overhead", "reason"} <= set(noted[0])
    assert result["auto"]["looks"] == len(noted) and result["auto"]["last"] == noted[-1]
    assert result["auto"]["switched"] == [look for look in noted if look["wanted"] != look["mode"]]
    progress = [event.fields for event in events if event.name == "progress"]
    assert progress[-1]["auto"] == noted[-1]
    done = [event.fields for event in events if event.name == "switch" and event.fields["state"] == "done"]
    assert [each["to"] for each in done] == ["gba", "sync"]


@pytest.mark.slow
def test_it_is_the_same_every_time(straggler: Ran, two_days: Path, tmp_path: Path) -> None:
    assert run(auto(), two_days, tmp_path) == straggler.result


@pytest.mark.parametrize("spread", [0.0, 0.05])
def test_a_calm_cluster_stays_in_sync(one_day: Path, tmp_path: Path, spread: float) -> None:
    eager = dataclasses.replace(FAST, minimum_stay=0.0, every=0.02)
    calm = auto(switch=eager, faults=[], cost={**COST, "spread": "lognormal", "spread_scale": spread})
    result = run(calm, one_day, tmp_path)
    assert {phase["mode"] for phase in result["phases"]} == {"sync"}
    assert result["auto"]["switched"] == [] and result["auto"]["looks"] > 30


def test_from_gba_a_calm_cluster_goes_to_sync_once(two_days: Path, tmp_path: Path) -> None:
    result = run(auto("gba", faults=[]), two_days, tmp_path)
    assert [phase["mode"] for phase in result["phases"]] == ["gba", "sync", "sync"]


def test_what_cannot_be_is_noted_and_not_asked(one_day: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For instance where a worker is gone that sync would need, or the last batch is handed out."""
    monkeypatch.setattr(ModeSwitch, "_obstacle", lambda self, cfg: f"no {cfg.mode.name} today")
    result = run(auto(), one_day, tmp_path)
    wished = [look for look in looks(tmp_path) if look["wanted"] != look["mode"]]
    assert wished and all(look["obstacle"] == "no gba today" for look in wished)
    assert {phase["mode"] for phase in result["phases"]} == {"sync"} and result["auto"]["switched"] == []


def test_the_other_mode_has_its_changes(one_day: Path, tmp_path: Path) -> None:
    switch = dataclasses.replace(FAST, changes={"local_batch": 16, "iota": 7}, modes=[{"prefetch": "rows"}])
    cfg = auto(switch=switch)
    assert cfg.candidates["gba"].mode.options["iota"] == 7 and cfg.candidates["sync"] is cfg
    assert run(cfg, one_day, tmp_path)["auto"]["switched"][0]["wanted"] == "gba"
    [there, *_] = [each["mode"] for each in infos(tmp_path, "mode") if isinstance(each["mode"], dict)]
    assert (there["name"], there["iota"], there["local_batch"], there["prefetch"]) == ("gba", 7, 16, "rows")


@pytest.mark.slow
def test_threads_do_the_same(one_day: Path, tmp_path: Path) -> None:
    """On a cluster of threads, whose rates nobody knows before: it ends, and every look is noted."""
    switch = dataclasses.replace(FAST, margin=0.0, hysteresis=0.0, minimum_stay=0.0, every=0.2)
    result = run_in_memory(auto(switch=switch, faults=[]), one_day, tmp_path)
    adds_up(result, 20000)
    assert result["auto"]["looks"] == len(looks(tmp_path)) > 0
    modes = [phase["mode"] for phase in result["phases"]]
    assert unchanged(tmp_path) == sum(a != b for a, b in itertools.pairwise(modes))
