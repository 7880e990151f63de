"""Every numeric key with values at the edges of what a number can be: refused in one sentence, or a run that works."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, get_args, get_type_hints

import pytest

from gbactl.conf_catalogue import option_files, options
from gbactl.config import RunConfig, from_dict
from gbactl.data.cache import prepare
from gbactl.data.dataset import open_dataset
from gbactl.data.readers import make_source, options_class
from gbactl.errors import ConfigError, DivergedError
from gbactl.faults.fault_kinds import KINDS, typed_name
from gbactl.policies.policy import names, policy_class
from gbactl.simulation.simulated_run import run_virtual
from gbactl.switching.switch_schedule import UNITS
from tests.support import small_data

EXTREMES = (0, -1, 1e-9, 1e20, 10**20, math.nan, math.inf, -math.inf)

#: what there is of a group, beside its default; every key is tried with each
NAMED: dict[str, list[dict[str, Any]]] = {
    "mode": [{"name": name} for name in names()],
    "cluster": [{"name": "local"}, {"name": "virtual"}, {"name": "hosts", "hosts": ["one:4", "two:4"]}],
    "optim": [
        *({"name": name} for name in ("sgd", "adagrad", "rowwise_adagrad", "adam")),
        *({"schedule": {"name": name, "total": 100}} for name in ("linear", "inverse_sqrt", "cosine")),
    ],
    "model": [{"name": "deepfm"}, {"name": "dcnv2"}],
    "collective": [{"name": "horovod"}, {"name": "gloo"}, {"name": "shm"}],
    "checkpoint": [{"name": name} for name in options("checkpoint")],
    "switch": [{}, {"name": "auto"}],
    "cost": [{}, {"spread": "exponential"}, {"spread": "lognormal"}, {"worker_scale": [1]}],
}

#: plans of faults with all numeric keys that each kind has
AT = ({"step": 1}, {"time": 1.0}, {"mtbf": 5.0, "times": 2, "distribution": "weibull", "shape": 2.0})
PLANS: list[dict[str, Any]] = [
    {"kind": "constant", "workers": 1, "servers": 1, "factor": 2},
    {"kind": "periodic", "factor": 2, "period_batches": 4, "duty": 0.5},
    {"kind": "periodic", "factor": 2, "period_seconds": 4.0},
    {"kind": "random", "distribution": "lognormal", "mean": 2, "sigma": 1.0},
    {"kind": "random", "distribution": "pareto", "mean": 2, "shape": 2.0},
    {"kind": "window", "factor": 2, "from": 0.0, "until": 5.0},
    {"kind": "hog", "workers": 1, "processes": 1, "from": 0.0, "until": 5.0},
    {"kind": "hog", "cores": [0]},
    {"kind": "trace", "points": [[0, 2, 0]], "scale": 1.0, "period": 9.0, "distribution": "lognormal", "sigma": 1.0},
    {"kind": "trace", "points": [[0, 2]], "distribution": "pareto", "shape": 2.0},
    {"kind": "messages", "drop": 0.1, "duplicate": 0.1, "reorder": 0.1, "delay": 0.1, "delay_seconds": 0.1},
    *({"kind": "messages", "drop": 0.1, "seconds": 1.0, **at} for at in AT),
    *({"kind": "kill", "workers": 1, "servers": 1, **at} for at in AT),
    *({"kind": "hang", "workers": 1, "seconds": 1.0, **at} for at in AT),
]  # fmt: skip

#: keys of which 0 is a value like others, or turns something off
ZERO = {
    "seed", "cluster.stop_seconds", "checkpoint.base_every", "checkpoint.load_seconds", "checkpoint.mb_per_second",
    "checkpoint.reschedule_seconds", "checkpoint.save_seconds", "cost.allreduce_rounds", "cost.overlap",
    "cost.spread_scale", "data.drift", "data.history_length", "data.lists", "data.max_bad_lines",
    "data.noise", "data.numeric", "data.seed", "data.signal", "data.skew", "data.user_field", "faults.seed",
    "mode.alpha", "mode.backup", "mode.block_momentum", "mode.bound",
    "mode.decay_rate", "mode.iota", "mode.prefetch", "mode.shadow_interval", "model.dropout", "model.init_scale",
    "optim.beta1", "optim.beta2", "optim.initial_accumulator", "optim.row_weight_decay", "optim.schedule.floor",
    "optim.schedule.total", "optim.schedule.warmup", "optim.weight_decay", "switch.drain_seconds", "switch.hysteresis",
    "switch.margin", "switch.minimum_stay", "train.checksum_every", "train.norms_every", "train.patience",
    *(f"cost.{field.name}" for field in dataclasses.fields(RunConfig().cost) if field.name.endswith(("_us", "_ns"))),
    *(f"faults.plans[0].{key}" for key in ("from", "step", "time", "drop", "duplicate", "reorder", "delay", "cores")),
    "faults.plans[0].points[0][0]", "faults.plans[0].points[0][2]",
}  # fmt: skip
INFINITE = {"mode.bound", "mode.iota", "mode.shadow_interval"}
LARGE = {*INFINITE, "optim.lr", "optim.row_lr"}  # 1e20 is one


class Case(NamedTuple):
    """A numeric key; `path`: where its value stands in a configuration that has all that it needs."""

    key: str
    path: tuple[str | int, ...]
    base: dict[str, Any]

    def values(self, value: Any) -> dict[str, Any]:
        """The configuration with a value for the key."""
        found: dict[str, Any] = _with(self.base, self.path, value)
        return found


def _with(inside: Any, path: tuple[str | int, ...], value: Any) -> Any:
    """Plain containers with one value replaced or added."""
    if not path:
        return value
    if isinstance(inside, list):
        return [_with(each, path[1:], value) if at == path[0] else each for at, each in enumerate(inside)]
    return {**inside, path[0]: _with(inside.get(path[0], {}), path[1:], value)}


def _numeric(hint: Any) -> bool:
    return hint in (int, float) or type(hint) is int or any(_numeric(part) for part in get_args(hint))


def _paths(cls: type[Any], *before: str) -> Iterator[tuple[str | int, ...]]:
    """Where numbers stand in a dataclass of the schema, a list's first ones included."""
    for name, hint in get_type_hints(cls).items():
        if name not in {field.name for field in dataclasses.fields(cls)} or "dict[" in str(hint):
            continue
        if dataclasses.is_dataclass(hint):
            yield from _paths(hint, *before, name)  # type: ignore[arg-type]
        elif _numeric(hint):
            yield (*before, name, 0) if str(hint).startswith("list[") else (*before, name)


def _of_groups() -> Iterator[Case]:
    for path in _paths(RunConfig):
        for named in NAMED.get(str(path[0]), [{}]) if len(path) > 1 else [{}]:
            base = {path[0]: named} if named else {}
            if len(path) > 1 and path[-1] == 0:
                base = _with(base, path[:-1], [1])
            yield Case(".".join(map(str, path)).removesuffix(".0"), path, base)
    for mode in names():
        for key in _paths(policy_class(mode).Options):
            yield Case(f"mode.{key[0]}", ("mode", *key), {"mode": {"name": mode}})


def _of_switches() -> Iterator[Case]:
    for unit in UNITS:
        base = {"switch": {"schedule": [{"at": {unit: 1}, "to": "gba"}]}}
        yield Case("switch.schedule[0]", ("switch", "schedule", 0, "at", unit), base)
    for key in ("workers", "iota", "local_batch", "prefetch"):
        base = {"switch": {"schedule": [{"at": {"day": 1}, "to": "gba", "set": {}}]}}
        yield Case("switch.schedule[0]", ("switch", "schedule", 0, "set", key), base)


def _of_faults() -> Iterator[Case]:
    for plan, (name, value) in [(each, item) for each in PLANS for item in each.items()]:
        inside: list[tuple[int, ...]] = [] if isinstance(value, str) else [()]
        if isinstance(value, list):
            inside = [(0, at) for at in range(len(value[0]))] if name == "points" else [(0,)]
        for rest in inside:
            shown = "".join(f"[{at}]" for at in rest) if name == "points" else ""
            path = ("faults", "plans", 0, name, *rest)
            yield Case(f"faults.plans[0].{name}{shown}", path, {"faults": {"plans": [plan]}})


def _of_data() -> Iterator[Case]:
    for source in option_files("data"):
        for path in _paths(options_class(source)):
            yield Case(f"data.{path[0]}", ("data", *path), {"data": {"name": source}})


CASES = [*_of_groups(), *_of_switches(), *_of_faults(), *_of_data()]


def _accepted(case: Case, value: Any) -> bool:
    """Whether the value passes; a refusal is one sentence that names the key."""
    values = case.values(value)
    try:
        make_source(values["data"]) if "data" in values else from_dict(values)
    except ConfigError as error:
        sentence = str(error)
        place, _, name = case.key.rpartition(".")
        assert place in sentence and name.split("[")[0] in sentence, (case, value, sentence)
        assert sentence.endswith(".") and "\n" not in sentence and len(sentence) < 300
        return False
    return True


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.key}-{case.base}"[:90])
def test_a_number_is_refused_by_name_or_means_something(case: Case) -> None:
    passed = [value for value in EXTREMES if _accepted(case, value)]
    assert not any(math.isnan(value) or value < 0 for value in passed), passed
    if not case.key.startswith("switch.schedule"):
        assert 0 not in passed or case.key in ZERO
        assert math.inf not in passed or case.key in INFINITE
        assert not any(1e19 < value < math.inf for value in passed) or case.key in LARGE


def test_every_numeric_key_of_a_fault_is_tried() -> None:
    tried = {(plan["kind"], key) for plan in PLANS for key in plan}
    for kind, cls in KINDS.items():
        assert {(kind, typed_name(str(path[0]))) for path in _paths(cls)} <= tried | {
            (kind, "workers"),
            (kind, "servers"),
        }


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepare({**small_data.options(200), "cache": str(tmp_path_factory.mktemp("cache"))})


TINY: dict[str, Any] = {
    "mode": {"name": "gba"}, "model": {"dim": 2, "hidden": [2]}, "train": {"global_batch": 40},
    "cluster": {"name": "virtual", "workers": 2, "servers": 1},
}  # fmt: skip


def _tiny(case: Case, value: Any) -> RunConfig:
    values = case.values(value)
    merged = {name: {**TINY.get(name, {}), **each} if isinstance(each, dict) else each for name, each in values.items()}
    return from_dict({**TINY, **merged})


@pytest.mark.slow
def test_what_passes_trains(data: Path, tmp_path: Path) -> None:
    """On a virtual cluster, one value of one key at the edge at a time."""
    elsewhere = ("hog", "hosts", "schedule", "'data'")  # what a virtual cluster, or its configuration, does not have
    cases = [case for case in CASES if not any(name in str(case.base) for name in elsewhere)]
    each = {(case.key, repr(value)): (case, value) for case in cases for value in EXTREMES if _accepted(case, value)}
    assert len(each) > 100
    for number, (case, value) in enumerate(each.values()):
        (run_dir := tmp_path / str(number)).mkdir()
        try:
            found = run_virtual(_tiny(case, value), open_dataset(data), run_dir)
        except DivergedError:
            assert case.key in ("optim.lr", "optim.row_lr") and value == 1e20
            continue
        samples = found["samples"]
        assert samples["read"] == samples["trained"] + samples["decayed"] + samples["lost"] == 200, case
        assert 0 < found["eps"] < math.inf and 0 <= found["auc"] <= 1, case
        assert 0 < found["virtual_seconds"] < math.inf, case
