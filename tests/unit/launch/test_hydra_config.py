"""The conf tree: every file composes, and what is mistyped is answered with what there is."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import yaml

from gbactl import conf_catalogue
from gbactl.conf_catalogue import conf_dir
from gbactl.config import ModeConfig, RunConfig, flatten, to_dict
from gbactl.errors import UsageError
from gbactl.launch.config_command import hints_of, single_hints
from gbactl.launch.hydra_config import compose, mode_file
from gbactl.models import option_hints
from gbactl.policies.policy import names, policy_class

FILES = sorted(path.relative_to(conf_dir()) for path in conf_dir().rglob("*.yaml"))
NEEDED = {
    f"cluster/{name}.yaml": ("cluster.hosts=[a:2,b:2]",) for name in ("exec", "hosts", "ray", "slurm")
}  # what only a user can know
NAMED = ("mode", "model", "data", "switch", "faults")  # groups that cannot be left out
GROUPS = [path for path in FILES if len(path.parts) == 2]


def test_the_tree_is_where_it_is_looked_for() -> None:
    assert Path("train.yaml") in FILES
    assert {path.parts[0] for path in GROUPS} == {
        "checkpoint", "cost", "faults", "switch",
        "mode", "data", "model", "optim", "cluster", "collective", "tracking", "experiment",
    }  # fmt: skip


@pytest.mark.quick(26)
@pytest.mark.parametrize("path", GROUPS, ids=str)
def test_every_file_of_a_group_composes(path: Path) -> None:
    group, option = path.parts[0], path.stem
    cfg = compose([f"{group}={option}", *NEEDED.get(str(path), ())])
    assert isinstance(cfg, RunConfig)
    own = yaml.safe_load((conf_dir() / path).read_text()) or {}
    if group in ("mode", "model", "optim", "cluster", "collective", "data", "switch", "checkpoint"):
        chosen = getattr(cfg, group)
        chosen = chosen if isinstance(chosen, dict) else dataclasses.asdict(chosen)
        assert chosen["name"] == (own["name"] if option != "auto" or group != "cluster" else "local")


def test_every_mode_has_a_file_with_its_keys_and_every_file_a_mode() -> None:
    assert {path.stem for path in (conf_dir() / "mode").glob("*.yaml")} == set(names())
    common = {field.name for field in dataclasses.fields(ModeConfig)} - {"options"}
    for mode in names():
        own = {field.name for field in dataclasses.fields(policy_class(mode).Options)}
        values = mode_file(mode)
        assert values["name"] == mode
        assert own <= set(values) <= own | common, mode


@pytest.mark.quick(6)
@pytest.mark.parametrize("experiment", sorted(p.stem for p in GROUPS if p.parts[0] == "experiment"))
@pytest.mark.parametrize("mode", names())
def test_every_experiment_runs_in_every_mode(experiment: str, mode: str) -> None:
    cfg = compose([f"experiment={experiment}", f"mode={mode}"])
    assert cfg.mode.name == mode


def test_without_a_word_it_is_the_default_of_the_schema() -> None:
    ours, schema = flatten(to_dict(compose([]))), flatten(to_dict(RunConfig()))
    data = {key for key in ours if key.startswith("data")}
    assert {key: ours[key] for key in set(ours) - data} == {key: schema[key] for key in set(schema) - {"data"}}


def test_every_file_of_faults_has_its_name_which_is_logged_with_the_run() -> None:
    for path in sorted((conf_dir() / "faults").glob("*.yaml")):
        assert flatten(to_dict(compose([f"faults={path.stem}"])))["faults.name"] == path.stem


def test_every_key_of_the_schema_can_be_typed() -> None:
    """Those of gba's decay only where mode=gba is chosen, and options of a model where it is."""
    schema = {f"{group}.{key}" for group in set(conf_catalogue.GROUPS) - {"data"} for key in hints_of(group, "")}
    schema |= {key for key in single_hints() if key not in conf_catalogue.GROUPS}
    typed = {f"model.{key}" for model in conf_catalogue.options("model") for key in option_hints(model)}
    schema |= typed & set(conf_catalogue.all_keys())  # tests/unit/models/ holds each file to its class
    assert {key for key in conf_catalogue.all_keys() if not key.startswith("data.")} == schema


@pytest.mark.parametrize("path", GROUPS, ids=str)
def test_every_file_says_what_it_is(path: Path) -> None:
    lines = (conf_dir() / path).read_text().splitlines()
    comments = [line for line in lines[:3] if line.startswith("# ") and "@package" not in line]
    assert comments


def test_experiments_open_with_the_command_that_runs_them() -> None:
    for path in GROUPS:
        if path.parts[0] == "experiment":
            second = (conf_dir() / path).read_text().splitlines()[1]
            assert "gbactl train" in second and f"experiment={path.stem}" in second


def test_overrides() -> None:
    cfg = compose(["mode=gba", "mode.iota=inf", "model.hidden=[32]", "cluster.workers=2", "+tracking.tags.study=a"])
    assert cfg.mode.options["iota"] == float("inf")
    assert (cfg.model.hidden, cfg.local_batch, cfg.tracking.tags) == ([32], 1024, {"study": "a"})


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["mode=turbo"], r"Could not find 'mode/turbo' Available options in 'mode': async bsp fr_bmuf .* gba .* sync"),
        (["experiment=nope"], r"Available options in 'experiment': .*smoke"),
        (["modee=gba"], r"no key modee\. Did you mean mode"),
        (["train.global_bach=1"], r"no key train\.global_bach\. Did you mean train\.global_batch"),
        (["optim.schedule.tot=1"], r"Did you mean optim\.schedule\.total"),
        (["data.rows=1"], r"no key data\.rows\. Did you mean data\.rows_per_day\?"),
        (["workers=4"], r"no key workers\. Did you mean cluster\.workers\?"),
        (["lr=.1"], r"no key lr\. Did you mean optim\.lr\?"),
        (["nosuch=1"], r"no key nosuch\. Type gbactl config for all groups\."),
        (["mode.iota=4"], r"mode\.iota does not belong to the chosen mode; type mode= one of: gba\."),
        (["mode=sync", "mode.name=gba"], r"^mode\.name=gba chooses no mode; type mode=gba\.$"),
        (["model.name=dlrm"], r"^model\.name=dlrm chooses no model; type model=dlrm\.$"),
        (["data=synthetic", "data.name=criteo"], r"^data\.name=criteo chooses no data; type data=criteo\.$"),
        (["tracking.tags.study=a"], r"type \+tracking\.tags\.study=VALUE"),
        (["tracking.tags={study: a}"], r"type \+tracking\.tags\.NAME=VALUE"),
        (["+tracking.tags.study=3"], r"tracking\.tags={'study': 3} is not keys with values, each text;"),
        (["mode=null"], "type GROUP=OPTION"),
        (["seed"], r"^'seed' is no override; type GROUP=OPTION or KEY=VALUE, without spaces around the =\.$"),
        (["mode=sync,gba"], r"^mode=sync,gba has several values; type -m for a run with each of them, or KEY=\["),
        *(([f"~{group}"], rf"^{group}\.\w+ is needed; type {group}=OPTION") for group in NAMED),
        (["~mode.name"], r"^mode\.name is needed; type mode=OPTION, whose file sets it, and no ~mode\.$"),
        (["+foo=1"], "has no key foo; keys are: mode, data"),
        (["seed=x"], "seed='x' is not a whole number"),
        (["train.global_batch=1001"], r"type train\.global_batch=1004"),
        (["seed=${nowhere}"], "nowhere"),
    ],
)
def test_what_is_mistyped_lists_what_there_is(overrides: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        compose(overrides)
    assert "\n" not in str(caught.value)
