"""The reference pages: every configuration key is there with its meaning; result.json and event log are as written."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import fields
from fnmatch import fnmatchcase
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

from docs.hooks.reference import configuration, records
from gbactl.conf_catalogue import conf_dir
from gbactl.config import flatten, to_dict
from gbactl.coordinator import event_log
from gbactl.coordinator.event_log import InfoRecord
from gbactl.coordinator.state import RunState
from gbactl.errors import DivergedError
from gbactl.faults.fault_kinds import KINDS
from gbactl.launch.hydra_config import compose
from gbactl.launch.training_run import train
from gbactl.wire.messages import BeginPhase

PAGES = Path(__file__).resolve().parents[3] / "docs" / "reference"
OWN, HOSTS = ("mode", "data", "model", "cluster"), ("cluster.hosts=[a:2,b:2]",)
#: a list whose entries have tables of their own
LISTS = {"faults.plans"}
KINDS_OF_RECORDS = {
    value: name for name, value in vars(event_log).items()
    if name.isupper() and not name.startswith("_") and value in range(1, event_log.FINISH + 1) and name != "FORMAT"
}  # fmt: skip

SMALL = (
    "cluster=virtual", "data.days=2", "data.rows_per_day=1500", "data.max_cardinality=100", "data.numeric=2",
    "data.fields=4", "model.dim=4", "model.hidden=[8]", "train.global_batch=64", "mode.local_batch=16",
    "tracking.enabled=false", "train.checksum_every=5", "collective=shm",
)  # fmt: skip
FAULTS = (
    "{kind: kill, servers: [0], step: 60}", "{kind: kill, workers: [1], step: 20}", "{kind: messages, drop: 0.1}",
    "{kind: kill, coordinator: true, step: 75}", "{kind: constant, workers: [0], servers: [1], factor: 2}",
)  # fmt: skip
RUNS = {
    "failures": (
        "mode=async", "checkpoint=cpr_mfu", "checkpoint.interval_steps=20", "checkpoint.save_seconds=0.01",
        "checkpoint.load_seconds=0.01", "checkpoint.reschedule_seconds=0.01", f"faults.plans=[{', '.join(FAULTS)}]",
    ),
    "switch": (
        "mode=sync", "switch.schedule=[{at: {samples: 500}, to: gba, set: {local_batch: 16}, fresh_optimizer: true}]",
    ),
    "auto": (
        "mode=sync", "switch=auto", "switch.every=0.001", "switch.window=0.05", "switch.minimum_stay=0.001",
        "faults=one_slow",
    ),
    "replicas": ("mode=fr_easgd", "mode.k=5"),
    "diverged": ("mode=gba", "optim=sgd", "optim.lr=1e30"),
}  # fmt: skip
#: what only other runs write: of real processes, with signals, whose ring broke
ELSEWHERE = {
    "stopped.signal", "stopped.state", "stopped.name", "stopped.step", "stopped.bytes", "stopped.why", "stopped.told",
    "refused.*", "time.began_at", "auto.*.obstacle", "gauc", "phases[].gauc", "rounds[].gauc",
}  # fmt: skip


def rows(page: str) -> list[list[str]]:
    """Cells of the rows of all tables."""
    lines = [line.strip() for line in page.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


def spans(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def composed() -> set[str]:
    """Every key of the composed configurations in which groups have keys of their own."""
    modes, data, models, clusters = (
        [path.stem for path in sorted((conf_dir() / group).glob("*.yaml"))] for group in OWN
    )
    chosen = [
        (f"mode={m}", f"data={d}", f"model={n}", f"cluster={c}")
        for m, d, n, c in zip(modes, cycle(data), cycle(models), cycle(clusters))
    ]
    chosen += [("switch=auto",), ("checkpoint=cpr",), ("cost=busy",), ("faults=trace",)]
    more = {
        **dict.fromkeys(("cluster=hosts", "cluster=ray", "cluster=slurm"), HOSTS),
        "cluster=exec": [*HOSTS, "cluster.exec='{host} {agent}'"],
    }
    return {key for typed in chosen for key in flatten(to_dict(compose([*typed, *more.get(typed[-1], [])])))}


@pytest.fixture(scope="module")
def page() -> str:
    """The generated part of the configuration page."""
    return configuration()


def test_every_configuration_key_has_a_row_with_a_meaning(page: str) -> None:
    found = {spans(cells[0])[0]: cells for cells in rows(page) if spans(cells[0]) and len(cells) == 4}
    keys = composed() - LISTS
    assert keys - {key for key in keys if key.endswith(".name")} | {"optim.schedule.name"} <= set(found)
    for key, (_, meaning, default, values) in found.items():
        assert meaning and default and values, key


def test_every_kind_of_fault_has_a_table(page: str) -> None:
    assert all(f"### kind: {kind} " in page for kind in KINDS)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("runs")
    for name, more in RUNS.items():
        cfg = compose([*SMALL, *more, f"data.cache={folder / 'cache'}", f"run_dir={folder / name}"])
        if name == "diverged":
            with pytest.raises(DivergedError):
                train(cfg)
        else:
            train(cfg)
    return {name: folder / name for name in RUNS}


def paths(value: Any, prefix: str = "") -> Iterator[str]:
    """Names of the fields of a JSON document."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from paths(inner, f"{prefix}.{key}" if prefix else key)
    elif isinstance(value, list) and value and isinstance(value[0], dict):
        for inner in value:
            yield from paths(inner, f"{prefix}[]")
    else:
        yield prefix


def test_the_page_has_the_fields_that_runs_write_and_no_others(runs: dict[str, Path]) -> None:
    patterns = {span for cells in rows((PAGES / "result-json.md").read_text()) for span in spans(cells[0])}
    patterns = {span for span in patterns if re.fullmatch(r"[a-z_]+(\[\])?(\.([a-z0-9_]+(\[\])?|\*))*", span)}
    written = {field for run in runs.values() for field in paths(json.loads((run / "result.json").read_text()))}
    plain = {pattern: pattern.replace("[]", "<>") for pattern in patterns}
    names = {re.sub(r"^(phases|rounds)\[\]\.replicas", "replicas", name).replace("[]", "<>") for name in written}
    names |= {"warnings<>"} if "warnings" in names else set()
    unknown = {name for name in names if not any(fnmatchcase(name, each) for each in plain.values())}
    assert not unknown - {"warnings", "recovery", "refused", "phases", "rounds"}  # may be empty, or of texts
    parts = {".".join(name.split(".")[:end]) for name in names for end in range(1, name.count(".") + 2)}
    assert {pattern for pattern, each in plain.items() if not any(fnmatchcase(n, each) for n in parts)} <= ELSEWHERE


def documented() -> dict[int, tuple[str, list[str]]]:
    """Kinds of the event log's records with named fields: {number: (name, fields)}."""
    page = [cells for cells in rows((PAGES / "event-log.md").read_text()) if len(cells) == 4 and cells[0].isdecimal()]
    return {int(number): (name, spans(told)) for number, name, _, told in page}


def test_the_page_has_the_records_that_runs_write(runs: dict[str, Path]) -> None:
    known = documented()
    for run in runs.values():
        for record in event_log.read(run / "events.log"):
            if isinstance(record, InfoRecord):
                assert set(record.fields) <= set(known[record.kind][1])
                assert record.kind != event_log.FAILURE or [*record.fields] == known[record.kind][1]


def test_the_page_has_every_kind_of_record_with_its_fields() -> None:
    known, fixed = documented(), {int(cells[0]): cells[1] for cells in rows(records()) if cells[0].isdecimal()}
    assert {**{number: name for number, (name, _) in known.items()}, **fixed} == KINDS_OF_RECORDS
    assert known[event_log.PHASE][1] == list(BeginPhase._fields)
    assert known[event_log.NOTE][1] == [field.name for field in fields(RunState().ongoing)]
