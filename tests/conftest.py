"""What holds for all tests: behaviour is tested, not time, so a slow machine fails no property."""

from __future__ import annotations

import gc
import logging
import os
import signal
from collections import defaultdict
from pathlib import Path

import pytest
import torch
from hypothesis import settings

from tests.support import stores

# who runs tests in the background has Ctrl-C ignored, and every process that they start would inherit that
signal.signal(signal.SIGINT, signal.default_int_handler)
settings.register_profile("gbactl", deadline=None)
settings.load_profile("gbactl")
UNIT = Path(__file__).parent / "unit"
gc.disable()  # until the tests are collected


@pytest.hookimpl(tryfirst=True)  # before cases are deselected
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let unit tests run beside others, and those marked `long` begin before others.

    Make cases of a test marked `quick` slow, but for as many, evenly spread. Of the combinations of several
    parameters those are left in which each has its next value, so that every value is in one of them; `quick` without a
    number leaves them all."""
    tests = defaultdict[str, list[pytest.Item]](list)
    for item in items:
        if UNIT in item.path.parents:
            item.add_marker(pytest.mark.beside)
        if item.get_closest_marker("quick") and not item.get_closest_marker("slow"):
            tests[item.nodeid.partition("[")[0]].append(item)
    for cases in tests.values():
        chosen = _each_value(cases)
        count = min(len(chosen), *cases[0].get_closest_marker("quick").args or [len(chosen)])  # type: ignore[union-attr]
        kept = {id(chosen[n * len(chosen) // count]) for n in range(count)}
        for case in (case for case in cases if id(case) not in kept):
            case.add_marker(pytest.mark.slow)
    items.sort(key=lambda item: item.get_closest_marker("long") is None)


def _each_value(cases: list[pytest.Item]) -> list[pytest.Item]:
    """Choose the cases that have value n of every parameter, which begins anew where it has fewer, for n = 0, 1, ..."""
    given = [case.callspec.params for case in cases]  # type: ignore[attr-defined]
    names = [mark.args[0] for mark in cases[0].iter_markers("parametrize")]
    axes = [[name] if isinstance(name, str) else name for name in names]
    values = [[tuple(id(params[name]) for name in axis) for params in given] for axis in axes]
    places = [{value: n for n, value in enumerate(dict.fromkeys(each))} for each in values]
    wanted = {tuple(n % len(place) for place in places) for n in range(max(map(len, places)))}
    at = zip(*([place[value] for value in each] for place, each in zip(places, values, strict=True)), strict=True)
    return [case for case, place in zip(cases, at, strict=True) if place in wanted]


def pytest_collection_finish() -> None:
    """Collect garbage from now on, rarely, and not among libraries and tests: it took a third of collecting tests."""
    gc.enable()
    gc.freeze()
    gc.set_threshold(20_000)


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """As in every process of a run: with more of them sums come in another order, and bits differ."""
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def loggers() -> None:
    """As in a new process: a command that Hydra runs in this one has disabled all loggers that there were."""
    logging.root.setLevel(logging.WARNING)
    for logger in logging.root.manager.loggerDict.values():
        if isinstance(logger, logging.Logger) and logger.name.startswith("gbactl"):
            logger.disabled = False


@pytest.fixture(scope="session", autouse=True)
def store_template(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The store that new ones are copies of, one for all processes of a session."""
    base = tmp_path_factory.getbasetemp()
    stores.copy_from((base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "mlflow-template.db")
