"""Checkpoints on the virtual cluster: the same files, and the same bits after them."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gbactl.checkpoint.folder import CheckpointFolder
from gbactl.config import CheckpointConfig, RunConfig, from_dict
from gbactl.coordinator.state import config_at
from gbactl.data.dataset import open_dataset
from gbactl.errors import Stopped
from gbactl.simulation.simulated_run import run_virtual
from gbactl.wire.messages import Event
from tests.support.simulated_runs import config, run
from tests.support.slow import slow


@pytest.mark.parametrize("mode", ["sync", "gba"])
def test_saving_changes_nothing_and_sync_goes_on_bit_for_bit(mode: str, data: Path, tmp_path: Path) -> None:
    saved = CheckpointConfig("full", interval_steps=4, keep=9, save_seconds=0.0)
    cfg = dataclasses.replace(config(mode), checkpoint=saved)
    whole, without = run(cfg, data, tmp_path / "a"), run(config(mode), data, tmp_path / "b")
    assert whole["checksums"] == without["checksums"]
    folder = CheckpointFolder(tmp_path / "a" / "checkpoints")
    assert [folder.verified(name).last.step for name in folder.names()] == [4, 8, 12, 12]
    values = config_at(folder.chain("cut-000001"))
    values["resume"] = str(folder.path / "cut-000001")
    again = run(from_dict(values), data, tmp_path / "c")
    assert again["samples"]["read"] == whole["samples"]["read"]
    if mode == "sync":
        assert again["checksums"] == whole["checksums"]
        assert again["auc"] == whole["auc"]


def test_the_rate_of_a_run_is_that_of_its_own_training_from_whatever_it_began(data: Path, tmp_path: Path) -> None:
    saved = CheckpointConfig("full", interval_steps=4, keep=9, save_seconds=0.0)
    slow = [{"kind": "constant", "workers": [0, 1, 2], "factor": 10.0}]
    run(dataclasses.replace(config("gba", faults=slow), checkpoint=saved), data, tmp_path / "base")

    def gone_on(path: Path, to: Path) -> tuple[float, float]:
        values = {**config_at(CheckpointFolder(path.parent).chain(path.name)), "resume": str(path), "faults": {}}
        result = run(from_dict(values), data, to)
        own = result["phases"][1:]  # the base has the first one, up to its step 4
        assert sum(phase["samples"] for phase in result["phases"]) == result["samples"]["trained"]
        return result["eps"], sum(phase["samples"] for phase in own) / sum(phase["seconds"] for phase in own)

    rates = gone_on(tmp_path / "base/checkpoints/cut-000001", tmp_path / "next")
    assert rates[0] == pytest.approx(rates[1])
    rates = gone_on(tmp_path / "next/checkpoints/cut-000001", tmp_path / "next")
    assert rates[0] == pytest.approx(rates[1]), "interrupted, it goes on as the run that it was"


def test_kills_that_were_due_before_the_checkpoint_are_not_repeated(data: Path, tmp_path: Path) -> None:
    before, after = ({"kind": "kill", "workers": [1], "step": 2}, {"kind": "kill", "workers": [2], "step": 8})
    saved = CheckpointConfig("full", interval_steps=4, keep=9, save_seconds=0.0)
    base = run(dataclasses.replace(config("gba", faults=[before, after]), checkpoint=saved), data, tmp_path / "base")
    assert [failed["process"] for failed in base["recovery"]] == ["W1", "W2"]
    path = tmp_path / "base" / "checkpoints" / "cut-000001"
    seconds = CheckpointFolder(path.parent).chain(path.name).last.position["seconds"]
    early = {"kind": "kill", "workers": [3], "time": 0.9 * seconds}
    for number, (plans, lost) in enumerate((([before, after], ["W2"]), ([before, early], []))):
        values = {**config_at(CheckpointFolder(path.parent).chain(path.name)), "resume": str(path)}
        again = run(from_dict({**values, "faults": {"plans": plans}}), data, tmp_path / str(number))
        assert [failed["process"] for failed in again["recovery"]] == lost


def test_other_faults_and_what_saving_costs_begin_anew_in_a_resumed_run(data: Path, tmp_path: Path) -> None:
    saved = CheckpointConfig("full", interval_steps=4, keep=9, save_seconds=1.0)
    cfg = dataclasses.replace(config("gba", cost={"batch_us": 200_000.0}), checkpoint=saved)
    run(cfg, data, tmp_path / "base")
    path = tmp_path / "base" / "checkpoints" / "cut-000001"
    chain = CheckpointFolder(path.parent).chain(path.name)
    resumed_at = chain.last.position["seconds"]
    assert resumed_at > 0.6
    storm = {"kind": "messages", "drop": 0.3, "time": 0.1, "seconds": 0.5}
    window = {"kind": "window", "factor": 3, "from": 0.1, "until": 0.6, "servers": [0]}
    values = {**config_at(chain), "resume": str(path), "faults": {"plans": [storm, window]}}
    result = run(from_dict(values), data, tmp_path / "next")
    assert result["messages"]["dropped"] > 0
    assert {acted["plan"] for acted in result["faults"]["acted"]} == {0, 1}
    for acted in result["faults"]["acted"]:
        assert resumed_at + 0.1 <= acted["from_s"] <= acted["until_s"] < resumed_at + 0.6
    overhead = result["checkpoint"]["overhead"]
    assert overhead["saving_seconds"] > 0.0
    assert overhead["job_seconds"] + overhead["saving_seconds"] == pytest.approx(result["virtual_seconds"], abs=0.01)


@pytest.mark.parametrize("name", ["cpr_scar", "cpr_mfu", "cpr_ssu"])
def test_chosen_rows_and_a_base_make_a_model(name: str, data: Path, tmp_path: Path) -> None:
    saved = CheckpointConfig(
        name, interval_steps=2, keep=99, share=0.5, base_every=2, large_tables=0.5, save_seconds=0.0
    )
    cfg = dataclasses.replace(config("gba"), checkpoint=saved)
    result = run(cfg, data, tmp_path / "a")
    folder = CheckpointFolder(tmp_path / "a" / "checkpoints")
    cuts = [folder.verified(cut).last for cut in folder.names()]
    assert [cut.kind for cut in cuts[:5]] == ["chosen", "rest", "chosen", "whole", "chosen"]
    assert (cuts[-1].kind, cuts[-1].base) == ("whole", [])
    rows = [sum(entry.rows for entry in cut.files) for cut in cuts]
    assert 0 < rows[0] < rows[1] < rows[3] == cuts[0].table_rows
    assert [cut.base for cut in cuts[1:5]] == [[cuts[0].name], [cuts[0].name, cuts[1].name], [], [cuts[3].name]]
    values = config_at(folder.chain(cuts[4].name))
    values["resume"] = str(folder.path / cuts[4].name)
    again = run(from_dict(values), data, tmp_path / "b")
    assert again["samples"]["read"] == result["samples"]["read"]
    first = CheckpointFolder(tmp_path / "b" / "checkpoints")
    assert first.chain(first.names()[0]).last.kind == "whole", "what it went on from is not in its folder"


def _sum(parts: list[dict[str, Any]]) -> dict[str, int]:
    """Staleness histogram of phases or rounds together."""
    counts = Counter[int]()
    for part in parts:
        counts.update({int(steps): count for steps, count in part["staleness_histogram"].items()})
    return {str(steps): count for steps, count in sorted(counts.items())}


def test_a_run_that_switches_goes_on_with_the_switches_to_come(data: Path, tmp_path: Path) -> None:
    switches = [{"at": {"samples": 400}, "to": "gba"}, {"at": {"samples": 1000}, "to": "sync"}]
    cfg = config("sync", switches=switches)
    cfg = dataclasses.replace(cfg, checkpoint=CheckpointConfig("full", interval_steps=1, keep=99, save_seconds=0.0))
    result = run(cfg, data, tmp_path / "a")
    modes = [phase["mode"] for phase in result["phases"]]
    assert modes == ["sync", "gba", "sync"]
    folder = CheckpointFolder(tmp_path / "a" / "checkpoints")
    homes = set()
    for name in folder.names()[:-1]:
        chain = folder.verified(name)
        homes.add(chain.last.home)
        values = config_at(chain)
        left = len(values["switch"]["schedule"])
        values |= {"resume": str(folder.path / name), "checkpoint": {"name": "none"}}
        again = run(from_dict(values), data, tmp_path / name)
        assert again["samples"] == {**result["samples"], "effective": again["samples"]["effective"]}
        assert [phase["mode"] for phase in again["phases"]][-1 - left :] == modes[-1 - left :]
        assert again["mode"] == result["mode"] == "sync>gba@samples400>sync@samples1000"
        assert _sum(again["phases"]) == _sum(again["rounds"]) == again["staleness_histogram"]
        if left == 0:
            assert again["checksums"]["model"] == result["checksums"]["model"]
    assert homes == {"servers", "workers"}


@pytest.mark.parametrize(("name", "steps", "seconds"), [("full", 4, 300.0), ("cpr_mfu", 12, 150.0)])
def test_a_save_takes_the_time_that_it_costs(name: str, steps: int, seconds: float, data: Path, tmp_path: Path) -> None:
    """12 steps. full saves at 4, 8 and 12; cpr_mfu half of the rows at 6, and all at 12. The last save of all, when
    training is over, costs nothing."""
    saved = CheckpointConfig(
        name, interval_steps=steps, share=0.5, large_tables=1.0, base_every=1, target_pls=0.5, save_seconds=100.0
    )
    slow = run(dataclasses.replace(config("sync"), checkpoint=saved), data, tmp_path / "a")
    fast = run(config("sync"), data, tmp_path / "b")
    assert slow["virtual_seconds"] - fast["virtual_seconds"] == pytest.approx(seconds, abs=1.0)
    assert slow["checksums"] == fast["checksums"]


def test_cuts_around_the_loss_of_a_worker_of_sync_are_whole(data: Path, tmp_path: Path) -> None:
    """Those left compute its batches: a cut's dense part is that of its step all the same."""
    plain = run(config("sync"), data, tmp_path / "plain")
    saved = CheckpointConfig("full", interval_steps=1, keep=99, save_seconds=0.0)
    cfg = dataclasses.replace(config("sync", faults=[{"kind": "kill", "workers": [1], "step": 4}]), checkpoint=saved)
    cluster = dataclasses.replace(cfg.cluster, lost_worker="continue")
    cfg = dataclasses.replace(cfg, cluster=cluster, collective=dataclasses.replace(cfg.collective, name="shm"))
    killed = run(cfg, data, tmp_path / "killed")
    assert killed["checksums"]["model"] == plain["checksums"]["model"]
    assert [failed["process"] for failed in killed["recovery"]] == ["W1"]
    folder = CheckpointFolder(tmp_path / "killed" / "checkpoints")
    steps = [folder.chain(name).last.step for name in folder.names()[:-1]]
    assert {3, 7} <= set(steps)
    for name in folder.names()[:-1]:
        values = {**config_at(folder.verified(name)), "resume": str(folder.path / name)}
        values |= {"checkpoint": {"name": "none"}, "faults": {}}
        again = run(from_dict(values), data, tmp_path / name)
        assert again["checksums"]["model"] == plain["checksums"]["model"], name


def stopped(cfg: RunConfig, data: Path, run_dir: Path, when: str, seconds: float = 30.0) -> Event:
    """Stop a run as its launcher does, once it has told an event of this name; what it answers."""
    heard: list[Event] = []
    asked: list[Event] = []

    def look(tell: Callable[[Event], None]) -> None:
        if any(event.name == "stop" for event in heard):
            raise Stopped(15)
        if not asked and any(event.name == when and event.fields.get("step", 9) > 3 for event in heard):
            asked.append(Event("stop", {"seconds": seconds}))
            tell(asked[0])

    run_dir.mkdir(exist_ok=True)
    with pytest.raises(Stopped):
        run_virtual(cfg, open_dataset(data), run_dir, heard.append, look)
    [answer] = [event for event in heard if event.name == "stop"]
    return answer


WHEN = [
    ("sync", "progress"), ("gba", "progress"), ("hop_bw", "progress"), ("shadow_easgd", "progress"),
    ("sync", "phase"), ("fr_bmuf", "phase"), slow("gba", "phase"), slow("async", "progress"),
    slow("hop_bs", "progress"), slow("shadow_ma", "progress"), slow("local_sgd", "progress"),
    slow("fr_bmuf", "progress"),
]  # fmt: skip


@pytest.mark.parametrize(("mode", "when"), WHEN)
def test_a_run_without_checkpoints_is_saved_when_it_is_stopped(
    mode: str, when: str, data: Path, tmp_path: Path
) -> None:
    """In a phase, or while what it trained is evaluated."""
    cfg, folder = config(mode), CheckpointFolder(tmp_path / "a" / "checkpoints")
    told = stopped(cfg, data, tmp_path / "a", when).fields
    last = folder.verified("cut-000001").last
    assert (told["state"], told["name"], told["step"], told["bytes"]) == ("saved", last.name, last.step, last.bytes)
    assert (last.position["unread"] == []) is (when == "phase")
    values = {**config_at(folder.chain(last.name)), "resume": str(folder.path / last.name)}
    again = run(from_dict(values), data, tmp_path / "b")
    assert sum(phase["samples"] for phase in again["phases"]) == again["samples"]["trained"]
    assert again["checkpoint"]["resumed_at"] == last.step
    if mode == "sync":
        whole = run(cfg, data, tmp_path / "c")
        assert (again["checksums"], again["auc"]) == (whole["checksums"], whole["auc"])


@pytest.mark.parametrize("mode", ["sync", "gba", "fr_bmuf"])
def test_a_run_that_is_stopped_in_an_evaluation_within_a_day_trains_the_rest_of_it(
    mode: str, data: Path, tmp_path: Path
) -> None:
    cfg, folder = config(mode), CheckpointFolder(tmp_path / "a" / "checkpoints")
    cfg = dataclasses.replace(cfg, train=dataclasses.replace(cfg.train, eval_every=500))
    assert stopped(cfg, data, tmp_path / "a", "phase").fields["state"] == "saved"
    last = folder.verified("cut-000001").last
    assert last.position["unread"] == [[512, 1500]]
    values = {**config_at(folder.chain(last.name)), "resume": str(folder.path / last.name)}
    again = run(from_dict(values), data, tmp_path / "b")
    assert again["samples"]["read"] == 1500 and [phase["first_sample"] for phase in again["phases"]] == [0, 512, 1024]
    assert all("auc" in phase for phase in again["phases"])
    if mode == "sync":
        assert again["checksums"] == run(config(mode), data, tmp_path / "c")["checksums"]


def test_one_that_cannot_be_saved_says_why(data: Path, tmp_path: Path) -> None:
    late = stopped(config("gba"), data, tmp_path / "a", "progress", seconds=0.0).fields
    assert (late["state"], late["why"]) == ("failed", "it took longer than cluster.stop_seconds=0")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "checkpoints").write_text("this is no folder")
    nowhere = stopped(config("gba"), data, tmp_path / "b", "progress").fields
    assert nowhere["state"] == "failed" and "checkpoints could not be made (" in nowhere["why"]
