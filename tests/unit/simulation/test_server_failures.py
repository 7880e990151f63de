"""Servers that are lost in virtual time: who goes back, to what, and that the accounting adds up."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gbactl.checkpoint.costs_and_interval import PARTIAL
from gbactl.checkpoint.folder import CheckpointFolder
from gbactl.checkpoint.restore import load_shard
from gbactl.config import CheckpointConfig, RunConfig, check, from_dict
from gbactl.coordinator.state import config_at
from gbactl.data.dataset import open_dataset
from gbactl.errors import ClusterError, EventLogError
from gbactl.replay.event_log_scan import scan
from gbactl.simulation.process_failures import FailureInjection, ServerFailures
from gbactl.simulation.server import VirtualServer
from gbactl.simulation.simulated_run import ZeroComputeCluster
from gbactl.store.shard import Shard
from gbactl.wire.messages import KIND, AddReplica, BeginPhase, Event, Inspect, Pull, ReloadCheckpoint, Save
from tests.support.failures import logged
from tests.support.modes import every_k
from tests.support.simulated_runs import config, model, run

KILL = {"kind": "kill", "servers": [1], "step": 7}
CRASH = {"kind": "kill", "coordinator": True}
COSTS = {"save_seconds": 8.0, "load_seconds": 6.0, "reschedule_seconds": 5.0}


def saving(name: str, mode: str, *plans: dict[str, Any], steps: int = 4, target: float = 0.5, **more: Any) -> RunConfig:
    """12 steps; partial recovery pays at this target."""
    options = {"keep": 9, "target_pls": target, "share": 0.5, "large_tables": 0.5, **COSTS}
    cfg = config(mode, faults=list(plans), **more)
    saved = CheckpointConfig(name, interval_steps=steps, **options)
    return check(dataclasses.replace(cfg, checkpoint=saved))


@pytest.mark.quick
@pytest.mark.parametrize("saved", [{}, {"steps": 100}, {"dense": 1}])
@pytest.mark.parametrize("step", [2, 7, 11])
def test_full_recovery_in_sync_ends_with_the_bits_of_a_run_without_failures(
    data: Path, tmp_path: Path, step: int, saved: dict[str, Any]
) -> None:
    plain = run(config("sync", dense=saved.get("dense")), data, tmp_path / "plain")
    result = run(saving("full", "sync", {**KILL, "step": step}, **saved), data, tmp_path / "run")
    assert model(result) == model(plain) and result["auc"] == plain["auc"]
    assert result["samples"]["rolled_back"] > 0 == plain["samples"]["rolled_back"]
    assert {**result["samples"], "rolled_back": 0} == plain["samples"]
    went, told = result["checkpoint"]["overhead"], result["checkpoint"]
    saved_at = 0 if "steps" in saved else step // 4 * 4
    undone = min(1500, 128 * (step + 1)) - 128 * saved_at  # the step in flight is trained to its end before
    assert went["samples_rolled_back"] == undone and went["everybody_went_back"] == 1
    assert (told["pls"], told["lost_updates"], told["resumed_at"]) == (0.0, 0.0, None)
    assert (went["loading_seconds"], went["rescheduling_seconds"]) == (6.0, 5.0)


def test_what_is_spent_is_what_a_run_takes_longer(data: Path, tmp_path: Path) -> None:
    plain = run(config("sync"), data, tmp_path / "plain")
    result = run(saving("full", "sync", KILL, {**KILL, "step": 10}), data, tmp_path / "run")
    went = result["checkpoint"]["overhead"]
    assert went["saving_seconds"] == 24.0 and went["everybody_went_back"] == 2
    spent = sum(went[f"{part}_seconds"] for part in ("saving", "loading", "rescheduling", "again"))
    assert 0 < went["again_seconds"] < 1.0
    assert result["virtual_seconds"] - plain["virtual_seconds"] == pytest.approx(spent, abs=0.02)
    assert went["total"] == pytest.approx(spent / went["job_seconds"])


@pytest.mark.quick(2)
@pytest.mark.parametrize("mode", ["gba", "sync", "async"])
@pytest.mark.parametrize("name", PARTIAL)
def test_partial_recovery_adds_up_and_costs_what_it_costs(data: Path, tmp_path: Path, mode: str, name: str) -> None:
    cfg = saving(name, mode, {**KILL, "step": 30 if mode == "async" else 7})
    result, again = run(cfg, data, tmp_path / "run"), run(cfg, data, tmp_path / "again")
    told, went = result["checkpoint"], result["checkpoint"]["overhead"]
    assert told["recovery"] == "partial" and (went["went_back_alone"], went["everybody_went_back"]) == (1, 0)
    assert (went["loading_seconds"], went["rescheduling_seconds"], went["again"]) == (3.0, 5.0, 0.0)
    [failed] = result["recovery"]
    assert (failed["process"], failed["failure"], failed["detected_s"]) == ("S1", "kill", 0.0)
    assert failed["loaded_s"] == pytest.approx(8.0) and failed["loaded_s"] < failed["useful_s"] < 8.1
    assert 0 < failed["pls"] == told["pls"] < 0.5 and failed["samples_undone"] == round(told["pls"] * 3000)
    undone = failed["row_updates_undone"]
    assert 0 < undone == round(told["lost_updates"] * told["row_updates"]) < 0.5 * told["row_updates"]
    for key in ("checksums", "recovery", "checkpoint", "auc"):
        assert again[key] == result[key]
    with pytest.raises(EventLogError, match="a server was lost"):
        scan(tmp_path / "run" / "events.log")


def test_where_partial_recovery_does_not_pay_everybody_goes_back_and_is_told_why(data: Path, tmp_path: Path) -> None:
    """So small a portion may be lost that all would be saved every 40 seconds."""
    received: list[Event] = []
    plain = run(config("sync"), data, tmp_path / "plain")
    cfg = saving("cpr", "sync", KILL, target=1e-4)
    cfg.checkpoint.job_seconds = 100_000.0  # figures are told of a job that was described
    result = run(cfg, data, tmp_path / "run", received)
    saved, went = result["checkpoint"], result["checkpoint"]["overhead"]
    assert (saved["name"], saved["recovery"], saved["pls"]) == ("cpr", "full", 0.0)
    assert (went["went_back_alone"], went["everybody_went_back"], went["samples_rolled_back"]) == (0, 1, 4 * 128)
    assert model(result) == model(plain)
    events = [event.fields for event in received if event.name == "checkpoint"]
    [sentence] = [fields["sentence"] for fields in events if fields["state"] == "planned"]
    assert sentence.startswith("full recovery, the cheaper one, saved every 4 steps")
    assert "partial recovery 19.85 % at 40 s, full 1.27 % at 1,270 s" in sentence


@pytest.mark.parametrize("name", ["cpr", "full"])
def test_the_event_log_times_every_failure(data: Path, tmp_path: Path, name: str) -> None:
    events: list[Event] = []
    worker = {"kind": "kill", "workers": [2], "step": 2}
    result = run(saving(name, "gba", worker, KILL, cost={"restart_us": 2000.0}), data, tmp_path / "run", events)
    found = logged(tmp_path / "run", result)
    assert [(each["process"], each["failure"]) for each in found] == [("W2", "kill"), ("S1", "kill")]
    injected = [event.fields["at"] for event in events if event.name == "inject"]
    assert [each["at_s"] for each in found] == pytest.approx(injected)
    assert all(each["detected_s"] < each["loaded_s"] < each["useful_s"] for each in found)


@pytest.mark.parametrize(("step", "lost", "failed"), [(4, 512, 1), (6, 256, 0)])
def test_what_is_lost_is_what_came_since_a_checkpoint_that_was_complete(
    data: Path, tmp_path: Path, step: int, lost: int, failed: int
) -> None:
    """At step 4 the checkpoint is under way, and ends with the server."""
    result = run(saving("cpr", "sync", {**KILL, "step": step}), data, tmp_path / "run")
    told = result["checkpoint"]
    assert (told["pls"], told["failed"]) == (pytest.approx(lost / (1500 * 2)), failed)
    assert 0 < told["lost_updates"] < 1.2 * lost / (1500 * 2)


@pytest.mark.parametrize("dense", [None, 1])
@pytest.mark.parametrize("mode", ["gba", "sync"])
def test_the_lost_shard_alone_goes_back(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, dense: int | None
) -> None:
    seen: list[dict[str, Any]] = []
    real = ServerFailures._recover_one

    def watched(self: ServerFailures, shard: int) -> None:
        servers = self.cluster.servers
        before = [contents(server.shard) for server in servers]
        version = servers[shard].shard.version
        real(self, shard)
        fresh = self.cluster.new_shard(shard)
        folder = CheckpointFolder(tmp_path / "run" / "checkpoints")
        load_shard(fresh, folder.verified("cut-000001"), mode == "gba")
        seen.append({"before": before, "after": [contents(server.shard) for server in servers], "saved": fresh})
        assert servers[shard].shard.version == version

    monkeypatch.setattr(ServerFailures, "_recover_one", watched)
    run(saving("cpr", mode, KILL, dense=dense), data, tmp_path / "run")
    [one] = seen
    assert same(one["before"][0], one["after"][0]) and not same(one["before"][1], one["after"][1])
    saved = contents(one["saved"])
    if mode == "sync":  # workers hold the dense part: none goes back
        saved = {**saved, **{name: value for name, value in one["before"][1].items() if name.startswith("dense")}}
    if not saved["dense.value"].size:  # no steps are counted for an empty slice
        saved = {**saved, "dense.step": one["before"][1]["dense.step"]}
    assert same(saved, one["after"][1])


def contents(shard: Shard) -> dict[str, Any]:
    found = {name: array.copy() for name, array in shard.rows.arrays.items()}
    if shard.dense is not None:
        found |= {f"dense.{name}": array.copy() for name, array in shard.dense_state().items()}
    return found


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return all(np.array_equal(one[name], other[name]) for name in one)


def test_failures_by_a_distribution_and_a_second_one_before_the_next_checkpoint(data: Path, tmp_path: Path) -> None:
    plan = {"kind": "kill", "servers": "all", "mtbf": 6.0, "distribution": "gamma", "shape": 2.0, "times": 3}
    result = run(saving("cpr_mfu", "gba", plan), data, tmp_path / "run")
    lost = [failed["pls"] for failed in result["recovery"]]
    assert len(lost) == 3 and sum(lost) == pytest.approx(result["checkpoint"]["pls"])
    twice = [{**KILL, "step": 6}, {**KILL, "step": 7}]
    result = run(saving("cpr", "gba", *twice), data, tmp_path / "twice")
    first, second = (failed["pls"] for failed in result["recovery"])
    assert 0 < second < first, "what was lost is lost once"


def test_full_recovery_by_time_again_and_again(data: Path, tmp_path: Path) -> None:
    plan = {"kind": "kill", "servers": "all", "mtbf": 25.0, "times": 5}
    plain = run(saving("full", "sync", steps=3), data, tmp_path / "plain")
    result = run(saving("full", "sync", plan, steps=3), data, tmp_path / "run")
    went = result["checkpoint"]["overhead"]
    assert result["checkpoint"]["row_updates"] == plain["checkpoint"]["row_updates"]
    assert sum(failed["samples_rolled_back"] for failed in result["recovery"]) == went["samples_rolled_back"] > 0
    assert went["everybody_went_back"] == len(result["recovery"]) >= 2
    assert model(result) == model(plain)
    loaded = [failed["loaded_s"] for failed in result["recovery"]]
    assert all(seconds >= 11.0 for seconds in loaded) and loaded[-1] == pytest.approx(11.0, abs=0.1), "22: two at once"
    useful = [failed["useful_s"] for failed in result["recovery"]]
    assert all(seconds is None or seconds > 11.0 for seconds in useful), "None: it failed again at once"
    assert useful[-1] is not None
    times, once = result["time"]["processes"], plain["time"]["processes"]
    batches = [sum(told.get("batches", 0) for told in each.values()) for each in (times, once)]
    assert batches[0] == batches[1] + went["samples_rolled_back"] / 32, "also those that were undone"
    assert all(times[name]["kernels"] > once[name]["kernels"] for name in ("S0", "S1"))
    assert result["time"]["since_second"] == 0.0


@pytest.mark.parametrize("mode", ["gba", "async", "hop_bw"])
def test_full_recovery_in_the_middle_of_a_phase_adds_up(data: Path, tmp_path: Path, mode: str) -> None:
    events: list[Event] = []
    cfg = saving("full", mode, {**KILL, "step": 30 if mode == "async" else 7}, steps=20 if mode == "async" else 4)
    result, again = run(cfg, data, tmp_path / "run", events), run(cfg, data, tmp_path / "again")
    [rewound] = [event.fields for event in events if event.name == "rewound"]
    assert result["checkpoint"]["overhead"]["samples_rolled_back"] == rewound["samples"] > 0
    assert rewound["to"] == (20 if mode == "async" else 4)
    assert again["checksums"] == result["checksums"] and again["recovery"] == result["recovery"]
    with pytest.raises(EventLogError, match=r"a server was lost \(S1, step"):
        scan(tmp_path / "run" / "events.log")


MOMENTS = [(Save, 3), (Save, 7), (Pull, 60), (Inspect, 1), (AddReplica, 2), (BeginPhase, 2), (ReloadCheckpoint, 1)]


@pytest.mark.quick(4)
@pytest.mark.parametrize("mode", ["sync", "gba", "shadow_ma", "fr_easgd"])
@pytest.mark.parametrize("name", ["full", "cpr"])
@pytest.mark.parametrize(("kind", "turn"), MOMENTS)
def test_a_server_that_is_lost_at_any_moment(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[Any], turn: int, name: str, mode: str
) -> None:
    """Also while replicas are given back, in an evaluation, with the last checkpoint, and on the way back."""
    plain, seen = VirtualServer.handle, [0]
    clusters: list[FailureInjection] = []
    made = FailureInjection.__init__

    def handle(self: VirtualServer, channel: Any, frame: Any) -> None:
        plain(self, channel, frame)
        seen[0] += self.index == 1 and frame.kind == KIND[kind]
        if seen[0] == turn:
            seen[0] += 1
            clusters[0].servers.on_failure(1)

    def init(self: FailureInjection, cluster: Any) -> None:
        made(self, cluster)
        clusters.append(self)

    monkeypatch.setattr(VirtualServer, "handle", handle)
    monkeypatch.setattr(FailureInjection, "__init__", init)
    result = run(saving(name, mode, KILL, steps=2, options=every_k(mode)), data, tmp_path / "run")
    assert len(result["recovery"]) == 1 + (seen[0] > turn)
    assert result["recovery"][-1]["loaded_s"] is not None and result["checkpoint"]["saved"] >= 4
    assert result["samples"]["rolled_back"] == result["checkpoint"]["overhead"]["samples_rolled_back"]
    assert CheckpointFolder(tmp_path / "run" / "checkpoints").newest().last.position["ended"]
    if (name, mode) == ("full", "sync"):
        assert model(result) == model(run(config("sync"), data, tmp_path / "plain"))


def test_times_alone_are_simulated_through_a_full_recovery(data: Path, tmp_path: Path) -> None:
    cfg = saving("full", "gba", KILL)
    real, found = run(cfg, data, tmp_path / "real"), ZeroComputeCluster(cfg, open_dataset(data), tmp_path).run()
    for key in ("virtual_seconds", "samples", "staleness_histogram"):
        assert found[key] == real[key]


def test_a_server_that_stands_still_is_lost_when_it_takes_too_long(data: Path, tmp_path: Path) -> None:
    hang = {"kind": "hang", "servers": [0], "step": 6}
    short = run(saving("cpr", "gba", {**hang, "seconds": 2.0}), data, tmp_path / "short")
    assert short["recovery"] == []
    result = run(saving("cpr", "gba", hang), data, tmp_path / "run")
    [failed] = result["recovery"]
    assert (failed["failure"], failed["detected_s"]) == ("hang", pytest.approx(10.0))


def test_the_mode_does_not_go_back(data: Path, tmp_path: Path) -> None:
    """Where everybody goes back behind a switch, the samples since are trained again in the mode after it."""
    switches = [{"at": {"samples": 768}, "to": "gba"}]
    for name, since in {"full": 512, "cpr": 768}.items():
        result = run(saving(name, "sync", KILL, switches=switches), data, tmp_path / name)
        assert [(phase["mode"], phase["first_sample"]) for phase in result["phases"]] == [("sync", 0), ("gba", since)]
        assert sum(phase["samples"] for phase in result["phases"]) == result["samples"]["trained"]


def test_chosen_rows_rest_on_what_the_lost_server_went_back_to(data: Path, tmp_path: Path) -> None:
    cfg = saving("cpr_mfu", "gba", {**KILL, "step": 5}, {**KILL, "step": 9}, steps=4)
    checkpoint = dataclasses.replace(cfg.checkpoint, keep=99, base_every=0)
    result = run(dataclasses.replace(cfg, checkpoint=checkpoint), data, tmp_path / "run")
    folder = CheckpointFolder(tmp_path / "run" / "checkpoints")
    cuts = [folder.verified(name).last for name in folder.names()]
    kinds = [(cut.step, cut.kind, len(cut.base)) for cut in cuts]
    assert kinds[:4] == [(2, "chosen", 0), (4, "rest", 1), (6, "chosen", 2), (8, "rest", 3)]
    assert result["checkpoint"]["failed"] == 0 and len(result["recovery"]) == 2


@pytest.mark.parametrize("name", ["full", "cpr"])
def test_a_run_that_went_on_from_a_checkpoint_goes_back_to_that(data: Path, tmp_path: Path, name: str) -> None:
    whole = run(saving("full", "sync"), data, tmp_path / "whole")
    folder = CheckpointFolder(tmp_path / "whole" / "checkpoints")
    values = config_at(folder.verified("cut-000001"))
    later = saving(name, "sync", {**KILL, "step": 6}, steps=100)
    values |= {"resume": str(folder.path / "cut-000001"), "faults": {"plans": [{**KILL, "step": 6}]}}
    values["checkpoint"] = dataclasses.asdict(later.checkpoint)
    result = run(from_dict(values), data, tmp_path / "run")
    assert result["checkpoint"]["resumed_at"] == 4
    if name == "full":
        assert model(result) == model(whole)
        assert result["checkpoint"]["overhead"]["samples_rolled_back"] == 384
    else:
        assert result["checkpoint"]["pls"] == pytest.approx(256 / (1500 * 2))


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    ("name", "mode"), [("full", "sync"), ("full", "gba"), ("cpr", "gba"), ("cpr", "sync"), ("cpr", "shadow_easgd")]
)
def test_a_worker_a_server_and_the_coordinator_die_in_one_run(data: Path, tmp_path: Path, name: str, mode: str) -> None:
    plans = [{"kind": "kill", "workers": [2], "step": 2}, {**CRASH, "step": 5}, KILL, {**CRASH, "step": 9}]
    cfg = saving(name, mode, *plans, cost={"restart_us": 2000.0})
    result, again = run(cfg, data, tmp_path / "run"), run(cfg, data, tmp_path / "again")
    assert [failed["process"] for failed in result["recovery"] if failed["process"] != "W2"] == ["C", "S1", "C"]
    assert [failed["samples_undone"] for failed in result["recovery"] if failed["process"] == "C"] == [0, 0]
    assert sum(failed["process"] == "W2" for failed in result["recovery"]) == 1
    for key in ("checksums", "recovery", "checkpoint", "auc", "virtual_seconds"):
        assert again[key] == result[key]
    if (name, mode) == ("full", "sync"):
        plain = run(config("sync"), data, tmp_path / "plain")
        assert model(result) == model(plain) and result["auc"] == plain["auc"]


def test_a_checkpoint_under_way_ends_with_the_coordinator(data: Path, tmp_path: Path) -> None:
    plain = run(saving("cpr_mfu", "gba"), data, tmp_path / "plain")
    cfg = saving("cpr_mfu", "gba", {**CRASH, "step": 4})
    checkpoint = dataclasses.replace(cfg.checkpoint, keep=99, base_every=0)
    result = run(dataclasses.replace(cfg, checkpoint=checkpoint), data, tmp_path / "run")
    folder = CheckpointFolder(tmp_path / "run" / "checkpoints")
    cuts = [folder.verified(name).last for name in folder.names()]
    assert [(cut.step, cut.kind) for cut in cuts][:3] == [(2, "chosen"), (6, "whole"), (8, "chosen")]
    told = result["checkpoint"]
    assert (told["saved"], told["failed"]) == (plain["checkpoint"]["saved"] - 1, 0)


def test_another_coordinator_needs_every_server(data: Path, tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match="S1 failed at the same time as the coordinator"):
        run(saving("cpr", "gba", {**KILL, **CRASH}), data, tmp_path / "run")
