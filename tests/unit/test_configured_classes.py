"""Classes named by target: what cannot be one is told in a sentence, and whose keys stand beside a target."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from gbactl.conf_catalogue import option_files, set_search_folders
from gbactl.config import RunConfig, from_dict, to_dict
from gbactl.data.readers import make_source
from gbactl.errors import ConfigError, UsageError
from gbactl.launch.finished_sweep_cells import cell_of
from gbactl.launch.hydra_config import compose, mode_file
from gbactl.policies.gba import GbaPolicy
from gbactl.policies.policy import policy_class

POLICY = """
from dataclasses import dataclass
from gbactl.policies.async_and_bsp import BspPolicy
from gbactl.policies.policy import PolicyOptions

@dataclass(frozen=True)
class Options(PolicyOptions):
    size: int = 2

class Pairs(BspPolicy):
    Options = Options
"""
READER = """
from dataclasses import dataclass

@dataclass(frozen=True)
class Reader:
    path: str
    rows: int = 3

    def sources(self): return []
    def build(self, folder, progress): raise NotImplementedError
"""
BROKEN = {
    "broken_parts": "import nowhere\n",
    "misspelt_parts": "import os\nos.nothing\n",
    "unread_parts": "class Pairs(\n",
    "circular_parts": "import circular_other\nclass Pairs: pass\n",
    "circular_other": "import circular_parts\ncircular_parts.Pairs\n",
    "script_parts": "import sys\nsys.exit('usage: script')\n",
    "function_parts": "def Pairs(phase, options): return None\n",
}


@pytest.fixture(autouse=True)
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_parts.py").write_text(POLICY + READER)
    for name, text in BROKEN.items():
        (tmp_path / f"{name}.py").write_text(text)
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "own_parts", raising=False)
    monkeypatch.setattr("gbactl.conf_catalogue._SEARCHED", [])


@pytest.mark.parametrize(
    ("target", "sentence"),
    [
        ("Pairs", r"mode\.target=Pairs is no MODULE\.CLASS; type for instance mode\.target=my_package\.Pairs\."),
        ("own_parts/parts.py", r"is no MODULE\.CLASS; type for instance mode\.target=my_package\.MyClass\."),
        (
            "no_such.Pairs",
            r"cannot be imported \(ModuleNotFoundError: No module named 'no_such'\); install its package",
        ),
        (
            "broken_parts.Pairs",
            r"cannot be imported \(ModuleNotFoundError: No module named 'nowhere', in .*broken_parts\.py:1\); install",
        ),
        ("misspelt_parts.Pairs", r"cannot be imported \(AttributeError: .*'nothing', in .*misspelt_parts\.py:2\)\."),
        ("unread_parts.Pairs", r"cannot be imported \(SyntaxError: .*\(unread_parts\.py, line 1\)\)\."),
        (
            "circular_parts.Pairs",
            r"cannot be imported \(AttributeError: .*circular import.*, in .*circular_parts\.py:1",
        ),
        ("script_parts.Pairs", r"cannot be imported \(SystemExit: usage: script, in .*script_parts\.py:2\)\."),
        ("function_parts.Pairs", r"is not a policy, a subclass of gbactl\.policies\.policy\.Policy\."),
        ("own_parts.Pear", r"the module own_parts has no Pear; type mode\.target=own_parts\.Pairs\."),
        ("own_parts.Other", r"has no Other; type mode\.target=own_parts\.Pairs\."),
        ("own_parts.Reader", r"is not a policy, a subclass of gbactl\.policies\.policy\.Policy\."),
        ("own_parts.dataclass", r"is not a policy"),
    ],
)
def test_what_is_no_target_is_told_in_a_sentence(target: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence) as told:
        policy_class("mine", target)
    assert str(told.value).endswith(".") and "\n" not in str(told.value)


def test_a_name_without_a_target_is_that_of_the_file() -> None:
    assert policy_class("gba") is GbaPolicy
    with pytest.raises(ConfigError, match=r"mode\.name=none is not known; type mode= one of: async, bsp"):
        policy_class("none")


@pytest.mark.parametrize("options", ["options.", ""])
def test_a_typed_target_has_its_own_name_and_none_of_the_keys_of_the_chosen_file(options: str) -> None:
    cfg = compose(["mode=gba", "mode.target=own_parts.Pairs", f"mode.{options}size=4", "mode.prefetch=none"])
    assert (cfg.mode.name, cfg.mode.target, cfg.mode.prefetch) == ("Pairs", "own_parts.Pairs", "none")
    assert cfg.mode.options == {"size": 4} and cfg.mode.policy.__name__ == "Pairs"
    assert from_dict(to_dict(cfg)) == cfg
    data = compose(["data.target=own_parts.Reader", f"data.{options}path=a"]).data
    assert data == {"name": "Reader", "target": "own_parts.Reader", "cache": None, "path": "a"}
    model = compose(["model.target=a.Model", f"model.{options}depth=2", "experiment=smoke"]).model
    assert (model.name, model.hidden, model.options) == ("Model", [64, 32], {"depth": 2})


def test_options_that_the_class_does_not_take() -> None:
    with pytest.raises(ConfigError, match=r"mode=Pairs has no key sise; keys are: .*, size\. Did you mean size\?"):
        compose(["mode.target=own_parts.Pairs", "mode.options.sise=4"])
    with pytest.raises(ConfigError, match=r"mode=Pairs has no key prefech; .* Did you mean prefetch\?"):
        compose(["mode.target=own_parts.Pairs", "mode.prefech=none"])
    with pytest.raises(ConfigError, match=r"data=Reader has no key row; .* Did you mean rows\?"):
        make_source({"name": "Reader", "target": "own_parts.Reader", "path": "a", "row": 3})
    with pytest.raises(ConfigError, match=r"data\.path is needed; type data\.path=VALUE\."):
        make_source({"name": "Reader", "target": "own_parts.Reader"})
    with pytest.raises(ConfigError, match=r"data\.rows='x' is not a whole number"):
        make_source({"name": "Reader", "target": "own_parts.Reader", "path": "a", "rows": "x"})


def test_files_of_a_folder_are_found_by_groups_schedules_and_names(tmp_path: Path) -> None:
    (tmp_path / "mode").mkdir()
    (tmp_path / "mode" / "pairs.yaml").write_text("name: pairs\ntarget: own_parts.Pairs\nlocal_batch: null\nsize: 2\n")
    searched = f"hydra.searchpath=[file://{tmp_path}]"
    cfg = compose([searched, "mode=pairs", "mode.size=3"])
    assert (cfg.mode.name, cfg.mode.options, cfg.mode.policy.__name__) == ("pairs", {"size": 3}, "Pairs")
    (tmp_path / "mode" / "short.yaml").write_text("name: short\ntarget: own_parts.Pairs\n")
    assert compose([searched, "mode=short", "mode.size=3"]).mode.options == {"size": 3}  # a key that no file has
    (tmp_path / "experiment").mkdir()
    for name, text in (("chosen", "defaults: [override /mode: short]"), ("typed", "mode: {target: own_parts.Pairs}")):
        (tmp_path / "experiment" / f"{name}.yaml").write_text(f"# @package _global_\n{text}\n")
        assert compose([searched, f"experiment={name}", "mode.size=3"]).mode.options == {"size": 3}
        with pytest.raises(ConfigError, match=r"has no key sise; keys are: .*, size\. Did you mean size\?"):
            compose([searched, f"experiment={name}", "mode.sise=3"])
    folder = tmp_path / "own, é"
    (folder / "data").mkdir(parents=True)
    (folder / "data" / "mine.yaml").write_text("name: mine\ntarget: own_parts.Reader\npath: a\n")
    for own in (("--config-dir", str(folder)), (f"--config-dir={folder}",)):
        both = compose([searched, *own, "mode=pairs", "data=mine"])
        assert (both.mode.name, both.data["target"]) == ("pairs", "own_parts.Reader")
    switched = compose([searched, "mode=sync", "switch.schedule=[{at: {day: 1}, to: pairs}]"])
    assert switched.phases[1].mode.policy.__name__ == "Pairs" and mode_file("pairs")["target"] == "own_parts.Pairs"
    assert "pairs" in option_files("mode")
    with pytest.raises(UsageError, match="Could not find 'mode/pairs'"):
        compose(["mode=pairs"])
    set_search_folders([])
    assert "pairs" not in option_files("mode")


def test_gbactls_own_targets_are_not_written_so_that_runs_keep_their_hash(tmp_path: Path) -> None:
    assert "'target'" not in str(to_dict(compose(["mode=gba", "switch.schedule=[{at: {day: 1}, to: async}]"])))
    cfg = compose(["mode.target=own_parts.Pairs"])
    before = cell_of(cfg, "data")
    (tmp_path / "own_parts.py").write_text(f"{POLICY}{READER}\nNEW = 1\n")
    assert cell_of(cfg, "data") != before != cell_of(RunConfig(), "data")


def test_the_number_of_a_mode_is_not_inherited() -> None:
    from gbactl.switching.switch_texts import mode_id

    found: Any = policy_class("mine", "own_parts.Pairs")
    assert mode_id("bsp") == 3 and mode_id("mine") is None and "number" not in vars(found)
