"""The study of the models: what it trains is a configuration of every model, and what its tables say."""

from __future__ import annotations

import re
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import study
import study_results
import write_models
from report_tables import against, by_line

from gbactl.conf_catalogue import options
from gbactl.launch.hydra_config import compose

EXPERIMENTS = Path(__file__).resolve().parents[3] / "experiments"
FOLDER = EXPERIMENTS / "models"


def test_every_model_is_trained_in_every_mode_with_every_seed() -> None:
    parts = study.read_study(FOLDER / "sweep.yaml", "default")
    frappe, tried, speed, synthetic, sequences, rates = parts
    of_histories = set(write_models.OF_HISTORIES)
    for part in (sequences, frappe, speed, synthetic):
        cells = [study_results.options(cell.overrides) for cell in part.cells]
        found = {(cell["model"], cell["mode"], cell["seed"]) for cell in cells}
        names, modes, seeds = (set(each) for each in zip(*found, strict=True))
        assert len(found) == len(cells) == len(names) * len(modes) * len(seeds)
        assert len(seeds) == (5 if part in (synthetic, sequences) else 3)
        assert names == (of_histories if part is sequences else set(write_models.PUBLISHED))
        for name in names:
            compose(list(next(cell.overrides for cell in part.cells if f"model={name}" in cell.overrides)))
    assert names | of_histories == set(options("model")) and not names & of_histories
    assert len(tried.cells) == 2 and not {cell.overrides for cell in tried.cells} & {c.overrides for c in frappe.cells}
    cells = [study_results.options(cell.overrides) for cell in rates.cells]
    assert {cell["model"] for cell in cells} == names | of_histories and {cell["mode"] for cell in cells} == {"sync"}
    assert not {cell["seed"] for cell in cells} & seeds, "a rate is not chosen on the seeds that compare the modes"


def test_the_modes_are_compared_at_the_rate_that_is_best_for_the_model_in_sync() -> None:
    auc: dict[str, dict[str, float]] = {}
    for cell in write_models.STUDY.found("rates"):
        auc.setdefault(write_models.model(cell), {})[cell.options["optim.lr"]] = float(cell.result["auc"])
    for part in study.read_study(FOLDER / "sweep.yaml", "default"):
        if part.name in ("synthetic", "sequences"):
            for cell in (study_results.options(cell.overrides) for cell in part.cells):
                of_model = auc[cell["model"]]
                assert cell["optim.lr"] == max(of_model, key=of_model.__getitem__)


def test_the_table_has_the_difference_from_the_published_figure() -> None:
    def done(mode: str, seed: str, auc: float) -> Any:
        of_cell = {"model": "dcnv2", "mode": mode, "seed": seed}
        return study_results.Done(of_cell, {"auc": auc, "eps": 300 if mode == "gba" else 200}, Path())

    cells = [done("sync", "0", 0.98400), done("sync", "1", 0.98404), done("gba", "0", 0.984), done("gba", "1", 0.98404)]
    [row] = [line for line in write_models.frappe(cells).splitlines() if line.startswith("| `dcnv2`")]
    assert row == "| `dcnv2` | 2 | 0.98382 | 0.98402 +-0.00003 | +0.00020 | yes | **+0.00000 +-0.00000** |"
    assert "\n| `dcnv2` | 2 | 200 | 300 | 1.50 +-0.00 |\n" in write_models.speed(cells)
    assert "dcnv2" not in write_models.speed(cells[:1]), "a ratio needs a pair"
    low = write_models.frappe([done("sync", "0", 0.982)])
    assert "| `dcnv2` | 1 | 0.98382 | 0.98200 | -0.00182 | no | - |" in low
    assert "| `dcnv2` | 2 | 0.98402 | +0.0" not in low
    assert "| **+0.00000 +-0.00000** | - | - |" in write_models.synthetic(cells)


def test_the_models_of_histories_have_a_table_of_their_own() -> None:
    done = study_results.Done
    cells = [
        done({"model": "din", "mode": mode, "seed": seed}, {"auc": auc}, Path())
        for mode, auc in (("sync", 0.8), ("gba", 0.8), ("async", 0.7)) for seed in "12"
    ]  # fmt: skip
    lines = write_models.sequences(cells).splitlines()
    assert lines[2] == "| `din` | 2 | 0.80000 | **+0.00000 +-0.00000** | - | -0.10000 +-0.00000 |"
    assert lines[-1].startswith("- sequences: ")


def figures(text: str) -> dict[str, list[float]]:
    """Numbers with a decimal point in each line of a table that begins with a model's name."""
    rows = re.findall(r"^\| `(\w+)` \| (.+)", text, re.MULTILINE)
    return {name: [float(number) for number in re.findall(r"[-+]?\d*\.\d+", line)] for name, line in rows}


@pytest.fixture(scope="module")
def on_frappe() -> list[study_results.Done]:
    return write_models.STUDY.found("frappe")


def test_the_pages_figures_of_frappe_are_those_of_the_runs(on_frappe: list[study_results.Done]) -> None:
    page = (EXPERIMENTS.parent / "docs" / "studies" / "models.md").read_text()
    shown = figures(page[page.index("| model | published") :].partition("\n\n")[0])
    found = figures(write_models.frappe(on_frappe).replace("+-", ""))
    assert shown == {name: found[name] for name in write_models.PUBLISHED}


def test_the_page_names_each_model_that_misses_the_published_auc_or_loses_auc_in_gba(
    on_frappe: list[study_results.Done],
) -> None:
    page, published = (EXPERIMENTS.parent / "docs" / "studies" / "models.md").read_text(), write_models.PUBLISHED
    auc = {
        name: by_line(write_models.of_model(on_frappe, name), "mode", lambda result: float(result["auc"]))
        for name in published
    }
    off = {name: fmean(modes["sync"].values()) - published[name] for name, modes in auc.items()}
    assert [name for name in off if abs(off[name]) > write_models.NEAR] == ["autoint"]
    assert "Seven of the eight models do" in page and "`autoint` does not" in page and len(off) == 8
    assert [name for name in auc if any(len(auc[name].get(mode, ())) < 3 for mode in ("sync", "gba"))] == ["autoint"]
    assert "with the one seed that was run" in page and "`autoint`, of which one pair of runs was made, .0030" in page
    lost = {name: against(modes, "gba", "sync") for name, modes in auc.items()}
    missed = [name for name, each in lost.items() if each is None or abs(each.mean) > write_models.SAME]
    assert sorted(missed) == ["autoint", "dlrm"]
    assert "with six of the eight models; with `dlrm` it is .00054 lower" in page


@pytest.mark.parametrize("part", ["synthetic", "sequences"])
def test_the_pages_figures_of_synthetic_data_are_those_of_the_runs(part: str) -> None:
    page = (EXPERIMENTS.parent / "docs" / "studies" / "models.md").read_text()
    cells = write_models.STUDY.found(part)
    for name in {write_models.model(cell) for cell in cells}:
        row = rf"^\| `{name}` \| (\.\d+) \| (\.\d+) \| \.\d+ \| \**(-?\.\d+) ± (\.\d+)"
        [(rate, *shown)] = re.findall(row, page, re.MULTILINE)
        here = write_models.of_model(cells, name)
        values = by_line(here, "mode", lambda result: float(result["auc"]))
        lost = against(values, "gba", "sync")
        assert (
            lost is not None and lost.half is not None and {float(c.options["optim.lr"]) for c in here} == {float(rate)}
        )
        found = (fmean(values["sync"].values()), lost.mean, lost.half)
        assert shown == [
            f"{value:.{len(text.partition('.')[2])}f}".replace("0.", ".", 1)
            for value, text in zip(found, shown, strict=True)
        ]


def test_the_table_of_what_was_tried_names_the_weight() -> None:
    done = study_results.Done
    cells = [done({"seed": "0"}, {"auc": 0.9762}, Path()),
             done({"seed": "0", "optim.row_weight_decay": "0.05"}, {"auc": 0.9749}, Path())]  # fmt: skip
    lines = write_models.tried(cells).splitlines()
    assert lines[2:4] == ["| 24 | 0.1 | 0.97620 | -0.00690 |", "| 24 | 0.05 | 0.97490 | -0.00820 |"]


def test_the_table_of_rates_marks_the_best_of_each_model() -> None:
    done = study_results.Done
    cells = [
        done({"model": model, "optim.lr": rate, "seed": "0"}, {"auc": auc}, Path())
        for model, rate, auc in [("dlrm", "0.004", 0.79), ("dlrm", "0.0005", 0.78), ("deepfm", "0.0005", 0.8)]
    ]
    lines = write_models.rates(cells).splitlines()
    assert lines[0] == "| model | learning rate 0.0005 | learning rate 0.004 |"
    assert lines[2:4] == ["| `deepfm` | **0.80000** | - |", "| `dlrm` | 0.78000 | **0.79000** |"]
