"""The kinds as they are typed: what is accepted, what each complaint says, and that they survive a file."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from gbactl.conf_catalogue import conf_dir
from gbactl.config import flatten, from_dict, to_dict
from gbactl.errors import ConfigError
from gbactl.faults.fault_kinds import ConstantSlowdown, PeriodicSlowdown, RandomSlowdown, WindowSlowdown, parse
from gbactl.launch.hydra_config import compose
from tests.support.fault_plans import EVERY_KIND


@pytest.mark.parametrize("typed", EVERY_KIND, ids=str)
def test_what_is_told_can_be_typed_again(typed: dict[str, Any]) -> None:
    (fault,) = parse([typed])
    assert parse([fault.to_dict()]) == [fault]
    assert fault.to_dict().items() >= typed.items()


def test_a_configuration_with_every_kind_survives_plain_containers_and_yaml() -> None:
    cfg = from_dict({"faults": {"seed": 3, "plans": list(EVERY_KIND)}})
    assert from_dict(yaml.safe_load(yaml.safe_dump(to_dict(cfg)))) == cfg
    assert flatten(to_dict(cfg))["faults.seed"] == 3


def test_free_composition_on_the_command_line() -> None:
    cfg = compose(["faults.plans=[{kind: constant, workers: [1], factor: 4}, {kind: window, factor: 2, from: 1}]"])
    assert parse(cfg.faults.plans) == [ConstantSlowdown(workers=[1], factor=4), WindowSlowdown(factor=2, from_=1)]
    assert compose(["faults.plans=[{kind: constant, workers: 1/8, factor: 4}]"]).faults.plans[0]["workers"] == "1/8"


def test_the_default_slows_nobody() -> None:
    assert compose([]).faults.plans == []
    assert {path.stem for path in conf_dir().glob("faults/*.yaml")} >= {
        "none", "one_slow", "eighth_slow", "periodic", "lognormal", "pareto", "burst", "trace", "hog",
        "slow_server", "kill_worker", "hang_worker", "kill_server", "kill_coordinator", "messages",
    }  # fmt: skip


@pytest.mark.quick(6)
@pytest.mark.parametrize("path", sorted(conf_dir().glob("faults/*.yaml")), ids=lambda path: path.stem)
def test_every_group_can_be_chosen_and_has_a_comment_a_key(path: Any) -> None:
    assert parse(compose([f"faults={path.stem}", "cluster.workers=8", "train.global_batch=2048"]).faults.plans) or (
        path.stem == "none"
    )
    for line in path.read_text().splitlines():
        told = "#" in line or line.strip() in ("", "plans:", "faults:", "defaults:")
        assert told or line.strip().startswith(("- kind: ", "- override /checkpoint: "))


@pytest.mark.parametrize("plan", ["kill_server", "hang_server"])
def test_a_server_that_is_to_be_lost_is_saved_unless_told_otherwise(plan: str) -> None:
    assert compose([f"faults={plan}"]).checkpoint.name == "cpr"
    assert compose([f"faults={plan}", "checkpoint=full"]).checkpoint.name == "full"


def test_the_factors() -> None:
    periodic = PeriodicSlowdown(factor=3.0, period_batches=4, duty=0.5)
    assert [periodic.factor_at(0, turn, 99.0) for turn in range(6)] == [3.0, 3.0, 1.0, 1.0, 3.0, 3.0]
    seconds = PeriodicSlowdown(factor=3.0, period_seconds=2.0, duty=0.25)
    assert [seconds.factor_at(0, 0, s) for s in (0.0, 0.49, 0.5, 1.9, 2.1)] == [3.0, 3.0, 1.0, 1.0, 3.0]
    window = WindowSlowdown(factor=8.0, from_=1.0, until=2.0)
    assert [window.factor_at(0, 0, s) for s in (0.0, 1.0, 1.99, 2.0)] == [1.0, 8.0, 8.0, 1.0]
    assert WindowSlowdown(factor=8.0, from_=1.0).factor_at(0, 0, 1e9) == 8.0
    assert RandomSlowdown(distribution="pareto", mean=1.0).factor_at(5, 6, 0.0) == 1.0


WRONG: list[tuple[dict[str, Any], str]] = [
    ({}, r"\[0\] has kind None; type kind: one of: constant, hang, hog, kill, messages, periodic, random, trace"),
    ({"kind": "slow"}, r"has kind 'slow'; type kind: one of"),
    ({"kind": "constant"}, r"\(kind constant\) needs factor"),
    ({"kind": "constant", "factor": 2, "duty": 1}, r"has no key duty; keys are: workers, servers, factor"),
    ({"kind": "constant", "factor": "x"}, r"factor='x' is not a number"),
    ({"kind": "constant", "factor": 0.5}, r"factor=0\.5 is not a number from 1 to 1e\+06\.$"),
    ({"kind": "constant", "factor": float("nan")}, r"factor=nan is not a number from 1 to"),
    ({"kind": "constant", "factor": float("inf")}, r"factor=inf is not a number from 1 to"),
    ({"kind": "constant", "factor": 2, "workers": True}, r"workers=True is not indices, a number, a share"),
    ({"kind": "constant", "factor": 2, "workers": "some"}, r"workers='some' is not understood"),
    ({"kind": "constant", "factor": 2, "workers": [9]}, r"no worker 9; workers are numbered 0 to 3"),
    ({"kind": "periodic", "factor": 2}, "needs one of period_batches and period_seconds"),
    ({"kind": "periodic", "factor": 2, "period_batches": 4, "period_seconds": 1.0}, "needs one of"),
    ({"kind": "periodic", "factor": 2, "period_batches": 0}, r"period_batches=0 is not a whole number from 1"),
    ({"kind": "periodic", "factor": 2, "period_batches": 4, "duty": 0}, r"duty=0 is not a number above 0 and at m"),
    ({"kind": "random", "mean": 2}, "needs distribution"),
    ({"kind": "random", "distribution": "weibull", "mean": 2}, "distribution= one of: exponential, lognormal, pareto"),
    ({"kind": "random", "distribution": "pareto", "mean": 0.5}, r"mean=0\.5 is not a number from 1 to"),
    ({"kind": "random", "distribution": "pareto", "mean": 2, "sigma": 1.0}, "sigma belongs to distribution: lognormal"),
    ({"kind": "random", "distribution": "pareto", "mean": 2, "shape": 1.0}, r"shape=1\.0 is not a number above 1"),
    ({"kind": "random", "distribution": "lognormal", "mean": 2, "sigma": 0.0}, r"sigma=0\.0 is not a number above 0"),
    ({"kind": "window", "factor": 2, "from": -1}, r"from=-1 is not a number from 0 to"),
    ({"kind": "window", "factor": 2, "from": 3, "until": 3}, r"until=3 must be later than from=3"),
    ({"kind": "constant", "factor": 2, "servers": [2]}, r"servers has no server 2; servers are numbered 0 to 1"),
    ({"kind": "constant", "factor": 2, "servers": "x"}, r"plans\[0\]\.servers='x' is not understood"),
    ({"kind": "hog", "servers": [0]}, "servers have none"),
    ({"kind": "hog"}, "needs one of workers and cores"),
    ({"kind": "hog", "workers": [0], "cores": [0]}, "needs one of workers and cores"),
    ({"kind": "hog", "cores": []}, "at least one core"),
    ({"kind": "hog", "cores": [0], "processes": 0}, "processes=0 is not a whole number from 1 to 65536"),
    ({"kind": "messages"}, "needs one of drop, duplicate, reorder and delay above 0"),
    ({"kind": "messages", "drop": 0.6}, r"drop=0\.6 is not a number from 0 to 0\.5\.$"),
    ({"kind": "messages", "drop": 0.1, "step": 1, "time": 2.0}, "takes only one of step, time and mtbf"),
    ({"kind": "messages", "drop": 0.1, "time": -1.0}, r"time=-1\.0 is not a number from 0 to"),
    ({"kind": "messages", "drop": 0.1, "step": 1, "seconds": 0.0}, r"seconds=0\.0 is not a number from 0\.001 to"),
    ({"kind": "messages", "drop": 0.1, "seconds": 1.0}, "seconds belongs to step, time or mtbf"),
    ({"kind": "messages", "drop": 0.1, "mtbf": 9.0}, "mtbf needs seconds, its duration each time"),
    ({"kind": "messages", "drop": 0.1, "mtbf": 9.0, "seconds": 1.0, "shape": 2.0}, "shape belongs to distribution"),
    ({"kind": "messages", "drop": 0.1, "time": 9.0, "times": 2}, "times belongs to mtbf"),
]


@pytest.mark.parametrize(("typed", "message"), WRONG, ids=[str(typed) for typed, _ in WRONG])
def test_what_cannot_work_says_what_to_type(typed: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        from_dict({"faults": {"plans": [typed]}})
    assert "\n" not in str(caught.value) and str(caught.value).startswith("faults.plans[0]")


def test_the_section_itself_is_typed() -> None:
    with pytest.raises(ConfigError, match=r"faults\.plans='x' is not a list"):
        from_dict({"faults": {"plans": "x"}})
    with pytest.raises(ConfigError, match="faults has no key plan; keys are: seed, plans"):
        from_dict({"faults": {"plan": []}})


def test_a_hog_needs_a_real_cpu() -> None:
    with pytest.raises(ConfigError, match="hog takes this machine's CPU, and cluster=virtual does not train"):
        from_dict({"cluster": {"name": "virtual"}, "faults": {"plans": [{"kind": "hog", "cores": [0]}]}})
