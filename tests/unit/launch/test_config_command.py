"""`gbactl config` and `gbactl train --cfg job`: every key is explained, and those that do not act are not printed."""

from __future__ import annotations

import dataclasses
import re

import pytest
from click.testing import CliRunner

from gbactl.cli import cli
from gbactl.conf_catalogue import GROUPS, all_keys, default_of, entries_of
from gbactl.errors import UsageError
from gbactl.faults.fault_kinds import KINDS, typed_name
from gbactl.launch.config_command import explain, filled_in
from gbactl.switching.switch_schedule import FIELDS


def test_every_key_is_explained() -> None:
    for key in all_keys():
        assert all(f"\n  {word}  " in explain(key) for word in ("type   ", "default", "acts   ")), key
        assert not re.search(r"^[\w.]+\n( \(|  type )", explain(key), re.MULTILINE), f"{key} has no meaning"
        assert all(entry.comment for entry in entries_of(key).values()) or key.endswith(".name"), key
    assert (
        explain("iota")
        == explain("mode.iota")
        == (
            "mode.iota\n  largest token staleness, in steps, at which a gradient still has weight 1\n"
            "  type     a number from 0 to inf\n  default  3\n  acts     with mode= gba"
        )
    )
    assert explain("optim.schedule").startswith("optim.schedule.name\n")
    assert explain("collective.name").startswith("collective.name\n  the chosen option; type collective=OPTION")
    assert "acts     with mode= bsp | gba | hop_bw\n" in f"{explain('mode.sparse_divisor')}\n"
    assert "acts     with mode= gba and mode.decay=exp" in explain("mode.decay_rate")
    assert "acts     in a sweep" in explain("objective") and "acts     in a sweep" in explain("rerun")
    assert "acts     with optim= adagrad | rowwise_adagrad" in explain("optim.initial_accumulator")
    assert "acts     with cluster=virtual" in explain("cost.cores") and "4 (cost= laptop)" in explain("cost.cores")
    assert "one of fp32, bf16" in explain("precision") and "from 0 to" in explain("seed")
    assert "or its directory;\n  uncompressed, or compressed by gzip, zstd or xz (data= mov" in explain("data.path")
    assert default_of("optim.lr").value == 0.001 and entries_of("nosuch.key") == entries_of("nosuch") == {}


def test_keys_of_faults_and_of_schedules_are_explained() -> None:
    for name, kind in KINDS.items():
        for field in dataclasses.fields(kind):
            told = explain(typed_name(field.name))
            assert re.search(rf"^  acts     .*\b{name}\b", told, re.MULTILINE | re.DOTALL), (name, field.name)
            assert max(map(len, told.splitlines())) <= 80
    assert (
        explain("factor")
        == explain("faults.plans.factor")
        == (
            "factor, of a fault in faults.plans\n"
            "  slow-down factor: with 4, each batch of a worker, or each message of a server,\n"
            "  takes four times as long\n"
            "  type     a number from 1 to 1e+06\n  default  needed\n"
            "  acts     with kind: constant | periodic | window"
        )
    )
    assert explain("mtbf").count("mtbf, of a fault") == 2, "two meanings"
    assert explain("workers").startswith("cluster.workers\n") and "\n\nworkers, of a fault" in explain("workers")
    for key in FIELDS:
        assert explain(key).startswith("switch.schedule\n") and f"{key}: " in explain(key)


def test_groups_and_options_are_explained() -> None:
    for word in (None, *GROUPS, "experiment", "mode=gba", "data=criteo"):
        assert max(map(len, explain(word).splitlines())) <= 85
    assert all(f"\n  {group} " in explain(None) for group in (*GROUPS, "experiment")) and "\n  seed=0 " in explain(None)
    assert "  mode=gba " in explain("mode") and "  mode.iota=3 " in explain("mode") and "mode.bound" in explain("mode")
    assert "  mode.iota=3 " in explain("mode=gba") and "mode.bound" not in explain("mode=gba")
    assert "  model.dim=16 " in explain("model"), "of the default option"
    assert "  experiment=smoke " in explain("experiment")
    assert "\n  data.days=3" in explain("experiment=smoke"), "as train takes it"
    assert "\n  faults.plans=[{kind: constant, workers: [1], factor: 4}] " in explain("faults=one_slow")
    with pytest.raises(UsageError, match=r"no key optim.lrr. Did you mean optim.lr"):
        explain("optim.lrr")
    with pytest.raises(UsageError, match=r"no key optim.nosuch. Type gbactl config optim for its keys."):
        explain("optim.nosuch")


@pytest.mark.parametrize("verb", ["train", "switch"])
def test_cfg_job_prints_the_keys_that_act(verb: str) -> None:
    told = CliRunner().invoke(cli, [verb, "mode=gba", "--cfg", "job"]).output
    assert told == filled_in(["mode=gba"]) and "iota: 3" in told
    assert "batch_us" not in told and "target_pls" not in told
