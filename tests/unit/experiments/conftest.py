"""The bench's modules: scripts beside each other, not a package."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

PERFORMANCE = Path(__file__).resolve().parents[3] / "experiments" / "performance"
MODULES = (
    "bench_lines", "bench_ratios", "bench_report", "curve_analysis", "curves", "kernel_copy", "profile_run",
    "ratio_sides", "server_cpu", "table_sizes", "tsv_preparation", "unauthenticated_clients", "virtual_cost",
)  # fmt: skip


@pytest.fixture(scope="session")
def bench() -> dict[str, ModuleType]:
    sys.path[:0] = [str(PERFORMANCE), str(PERFORMANCE / "peers")]
    found = {name: importlib.import_module(name) for name in MODULES}
    spec = importlib.util.spec_from_file_location("performance_run", PERFORMANCE / "run.py")
    assert spec is not None and spec.loader is not None
    found["run"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found["run"])
    return found
