"""`gbactl train cluster=virtual` as a user types it: tracked, reported, stopped."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from gbactl.coordinator import event_log
from gbactl.cpu import SLOW_BF16, lacks_bf16
from gbactl.data.cache import prepare
from gbactl.errors import UsageError
from gbactl.launch.hydra_config import compose
from tests.support.processes import Launcher, environment, wait_for
from tests.support.simulated_runs import run
from tests.support.slow import slow

SMALL = (
    "cluster=virtual", "experiment=smoke", "data.days=3", "data.rows_per_day=4000", "data.max_cardinality=300",
    "model.dim=4", "model.hidden=[32]", "train.global_batch=256", "train.eval_batch=1024",
)  # fmt: skip


@pytest.fixture
def launcher(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launcher]:
    made = Launcher(tmp_path, environment(tmp_path_factory.getbasetemp() / "virtual-cache"))
    yield made
    left = [what for launched in made.started for what in launched.reap()]
    assert not left, f"left behind: {left}"


def test_a_virtual_run_is_tracked_and_reported_like_any_other(
    launcher: Launcher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = (*SMALL, "mode=gba", "cluster.workers=8", "cost=cluster_10gbe", "faults=one_slow")
    result = launcher.train(*keys, small=False, tracking=True)
    assert (result["status"], result["clock"]) == ("FINISHED", "virtual")
    assert 0 < result["phases"][0]["seconds"] < result["virtual_seconds"] < result["wall_seconds"]
    assert result["samples"]["read"] == result["samples"]["trained"] + result["samples"]["decayed"] == 8000
    assert [phase["day"] for phase in result["phases"]] == ["day 0", "day 1"]
    run_dir = Path(result["run_dir"])
    assert result["event_log_bytes"] <= (run_dir / "events.log").stat().st_size
    assert next(iter(event_log.read(run_dir / "events.log"))).fields["threads"] == 1
    monkeypatch.setenv("GBACTL_CACHE", launcher.environment["GBACTL_CACHE"])
    cfg = compose(list(keys))
    again = json.loads(json.dumps(run(cfg, prepare(cfg.data), tmp_path / "again")))  # untracked, in this process
    for name in ("checksums", "auc", "virtual_seconds", "curve", "phases", "per_worker"):
        assert again[name] == result[name], name
    report = launcher.gbactl("report", "--format", "md").stdout
    assert "virtual s" in report and "wall s" in report and f"{result['virtual_seconds']:.2f}" in report


def test_ctrl_c_ends_it_and_keeps_what_was_logged(launcher: Launcher) -> None:
    launched = launcher.start(*SMALL, "mode=async", "data.rows_per_day=400000", small=False)
    log = launched.run_dir / "events.log"
    wait_for(lambda: launched.process.poll() is not None or (log.exists() and log.stat().st_size > 4000))
    os.kill(launched.process.pid, signal.SIGINT)
    done = launched.finish(60)
    assert done.code == 130 and "Traceback" not in done.err
    assert done.result["status"] == "KILLED" and done.result["stopped"]["state"] == "saved"
    assert list(launched.run_dir.glob("checkpoints/cut-000001/manifest.json"))


def test_its_nodes_log_to_a_file(launcher: Launcher) -> None:
    switch = "switch.schedule=[{at: {seconds: 0.001}, to: sync}]"
    done = launcher.start(*SMALL, "mode=gba", switch, "data.rows_per_day=512", small=False).finish()
    assert "INFO a switch to sync is due" in (Path(done.result["run_dir"]) / "logs/virtual.log").read_text()


@pytest.mark.parametrize("precision", [slow("fp32"), "bf16"])
def test_a_processor_without_bf16_is_told(launcher: Launcher, precision: str) -> None:
    done = launcher.start(*SMALL, f"precision={precision}", "data.rows_per_day=512", small=False).finish()
    assert done.result["status"] == "FINISHED"
    assert (SLOW_BF16 in done.err) is (precision == "bf16" and lacks_bf16())


def test_what_only_real_processes_have_is_not_taken(launcher: Launcher) -> None:
    for key, told in (
        (
            "cluster.transport=tcp",
            "not belong to the chosen cluster; type cluster= one of: exec, hosts, local, ray, slurm.",
        ),
        ("cluster.pin=off", "not belong to the chosen cluster; type cluster= one of: exec, hosts, local, ray, slurm."),
        ("faults=hog", "type cluster=local"),
    ):
        with pytest.raises(UsageError, match=re.escape(told)):
            compose([*SMALL, key])
    done = launcher.start(*SMALL, "cluster.pin=off", small=False).finish()
    assert done.code == 2 and "type cluster= one of: exec, hosts, local, ray, slurm." in done.err
