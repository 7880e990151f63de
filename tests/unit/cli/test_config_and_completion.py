"""Overrides on the command line: their completion, and their part of the help of `train`."""

from __future__ import annotations

from click.shell_completion import ShellComplete
from click.testing import CliRunner

from gbactl.cli import cli
from gbactl.conf_catalogue import GROUPS, MOST_USED, options


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
    assert completed("switch", "mode.iot") == ["mode.iota="] and completed("train", "mode.na") == []
    assert completed("train", "clus") == [f"cluster={name}" for name in options("cluster")]
    assert completed("config", "optim.sch")[0] == "optim.schedule.name"


def test_the_help_of_train_has_all_groups_and_the_keys_that_are_used_most() -> None:
    text = CliRunner().invoke(cli, ["train", "--help"]).output
    assert all(f"  {group} " in text for group in (*GROUPS, "experiment"))
    assert len(MOST_USED) == 20 and all(f"  {key}=" in text for key in MOST_USED)
    assert "  seed=0 " in text and "seed of initial values, shuffling and" in text.partition("  seed=0 ")[2][:80]
    assert text.count("    gbactl train") + text.count("  gbactl train") == 4 and max(map(len, text.splitlines())) <= 80
    assert "optim.lr=0.001" in text and "cluster.workers=4" in text, "of the default options"
