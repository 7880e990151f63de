"""Scripts of the studies, which are no packages: a test imports them by name; configurations of studies' cells."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Collection
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from gbactl.config import to_dict
from gbactl.launch.hydra_config import compose
from gbactl.tracking.metrics_and_tags import config_hash

EXPERIMENTS = Path(__file__).resolve().parents[3] / "experiments"

STUDIES = (each for each in EXPERIMENTS.glob("*/") if each.name != "templates")  # a package of its own

sys.path[:0] = map(str, (EXPERIMENTS, *STUDIES, EXPERIMENTS / "performance" / "peers"))


@pytest.fixture(scope="session")
def run_script() -> Callable[[str], ModuleType]:
    """Import the run.py of a study's folder, as several have one."""

    def load(study: str) -> ModuleType:
        spec = importlib.util.spec_from_file_location(f"{study}_run", EXPERIMENTS / study / "run.py")
        assert spec is not None and spec.loader is not None
        found = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(found)
        return found

    return load


@pytest.fixture
def different() -> Callable[[Collection[Any]], bool]:
    """Whether cells, with their bases, have configurations, each another one."""

    def ask(cells: Collection[Any]) -> bool:
        pairs = [(cell.overrides, cell.base) for cell in cells]
        hashes = {each: config_hash(to_dict(compose(list(each)))) for each in set().union(*pairs) if each}
        return len({tuple(hashes[each] for each in pair if each) for pair in pairs}) == len(pairs)

    return ask
