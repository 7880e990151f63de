"""The bench's modules, which are scripts beside each other, not a package; configurations of studies' cells."""

from __future__ import annotations

import importlib
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
PERFORMANCE = EXPERIMENTS / "performance"
MODULES = (
    "bench_lines", "bench_ratios", "bench_report", "curve_analysis", "curves", "kernel_copy", "profile_run",
    "ratio_sides", "server_cpu", "table_sizes", "tsv_preparation", "unauthenticated_clients", "virtual_cost",
)  # fmt: skip

sys.path.insert(0, str(EXPERIMENTS))  # of the scripts that studies share


@pytest.fixture(scope="session")
def bench() -> dict[str, ModuleType]:
    sys.path[:0] = [str(PERFORMANCE), str(PERFORMANCE / "peers")]
    found = {name: importlib.import_module(name) for name in MODULES}
    spec = importlib.util.spec_from_file_location("performance_run", PERFORMANCE / "run.py")
    assert spec is not None and spec.loader is not None
    found["run"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found["run"])
    return found


@pytest.fixture
def different() -> Callable[[Collection[Any]], bool]:
    """Whether cells, with their bases, have configurations, each another one."""

    def ask(cells: Collection[Any]) -> bool:
        pairs = [(cell.overrides, cell.base) for cell in cells]
        return len({tuple(config_hash(to_dict(compose(list(o)))) for o in pair if o) for pair in pairs}) == len(pairs)

    return ask
