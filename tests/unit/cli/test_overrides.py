"""Overrides: their completion, their part of the help of `train`, and what `gbactl config` says of them."""

from __future__ import annotations

import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner

from gbactl.cli import cli
from gbactl.conf_files import GROUPS, MOST_USED, all_keys, default_of, entries_of
from gbactl.config import RunConfig, from_dict, to_dict
from gbactl.config.acting import acting, when
from gbactl.errors import UsageError
from gbactl.launch.config_command import explain
from gbactl.launch.hydra_config import known_keys, shows_configuration


def completed(*words: str) -> list[str]:
    """What a shell proposes for the last word."""
    *before, incomplete = words
    found = ShellComplete(cli, {}, "gbactl", "_GBACTL_COMPLETE").get_completions(before, incomplete)
    return [each.value for each in found]


def test_verbs_groups_options_and_keys_are_completed() -> None:
    assert completed("re") == ["report", "replay"]
    assert completed("train", "mode=hop") == ["mode=hop_bs", "mode=hop_bw"]
    assert completed("train", "seed=1", "mode", "=", "hop_bs") == ["hop_bs"], "as bash cuts words"
    assert "hosts" in completed("train", "cluster", "=")
    assert completed("switch", "mode.iot") == ["mode.iota="]
    assert completed("train", "clus") == ["cluster=hosts", "cluster=local", "cluster=virtual"]
    assert completed("config", "optim.sch")[0] == "optim.schedule.name"


def test_the_help_of_train_has_all_groups_and_the_keys_that_are_used_most() -> None:
    text = CliRunner().invoke(cli, ["train", "--help"]).output
    assert all(f"  {group} " in text for group in (*GROUPS, "experiment"))
    assert len(MOST_USED) == 20 and all(f"  {key}=" in text for key in MOST_USED)
    assert text.count("    gbactl train") + text.count("  gbactl train") == 4 and max(map(len, text.splitlines())) <= 80
    assert "optim.lr=0.001" in text and "cluster.workers=4" in text, "of the default options"


def test_every_key_is_explained() -> None:
    known = set(known_keys()) & set(all_keys())
    assert len(known) > 100
    for key in sorted({"mode.iota", "cost.cores", "data.path", "seed", "faults.seed", "optim.schedule.name"} & known):
        assert all(f"\n  {word}" in explain(key) for word in ("type", "default", "acts"))
    assert "a number from 0 to inf\n  default  3\n  acts     with mode= gba" in explain("iota")
    assert "acts     with cluster=virtual" in explain("cost.cores") and "(cost= laptop)" in explain("cost.cores")
    assert "one of fp32, bf16" in explain("precision") and "from 0 to" in explain("seed")
    for word in (None, *GROUPS, "experiment", "mode=gba"):
        assert max(map(len, explain(word).splitlines())) <= 100
    with pytest.raises(UsageError, match=r"Did you mean optim.lr"):
        explain("optim.lrr")
    assert default_of("optim.lr").value == 0.001 and entries_of("nosuch.key") == entries_of("nosuch") == {}


def test_keys_that_do_not_act_are_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    whole = to_dict(RunConfig())
    found = acting(whole)
    assert found["checkpoint"] == {"name": "none"} and found["cost"] == {"name": "laptop"}
    assert "hosts" not in found["cluster"] and "every" not in found["switch"] and found["optim"] == whole["optim"]
    used = {"cluster": {"name": "virtual", "workers": 2}, "checkpoint": {"name": "full"}, "switch": {"name": "auto"}}
    config = to_dict(from_dict(used))
    assert acting(config)["cost"] == config["cost"] and acting(config)["checkpoint"] == config["checkpoint"]
    assert "every" in acting(config)["switch"]
    assert when("seed") == when("cost.name") == "in every run" and when("cluster.ssh") == "with cluster=hosts"
    assert shows_configuration(["mode=gba", "--cfg", "job"]) and not shows_configuration(["mode=gba", "--info"])
    told = capsys.readouterr().out
    assert "iota: 3.0" in told or "iota: 3" in told
    assert "batch_us" not in told and "target_pls" not in told
