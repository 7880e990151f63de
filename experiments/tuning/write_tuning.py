"""Write results.md: the best trial of each mode, and tuned and untuned modes on other data.

Costs a few seconds; reads cells.jsonl and chosen.yaml. Part of `make tuning`.
"""

from __future__ import annotations

import statistics

import report_tables
import study
import study_results
from tune import STUDY, overrides, trials

CHOSEN = study_results.Results(STUDY.place / "chosen.yaml")
BASELINES, TARGET = ("gba", "gba-tuned"), 0.0005


def tried() -> str:
    """Table of the trials: how many, the best one's options and AUC, and the AUC of the worst."""
    record, rows = study.Record.of(STUDY.sweep, study_results.size()), []
    for template in STUDY.part("trials").cells:
        mode, found = study_results.options(template.overrides)["mode"], trials(record, template)
        params, best = max(found, key=lambda trial: trial[1])
        aucs = sorted(auc for _, auc in found)
        told = [f"{len(found)}", ", ".join(overrides(params)), f"{best:.5f}", f"{statistics.median(aucs):.5f}"]
        rows.append([mode, *told, f"{aucs[0]:.5f}"])
    note = "AUC: on the validation day of seed 100, which no reported cell has; .5 if the trial diverged."
    return report_tables.markdown(("mode", "trials", "best", "its AUC", "median AUC", "smallest AUC"), rows, note)


def reported() -> str:
    """Table of the reported cells: AUC, and the differences to gba as it is and tuned."""
    cells = CHOSEN.found("reported")
    aucs = report_tables.by_line(cells, "line", lambda result: result["auc"])
    speeds = report_tables.by_line(cells, "line", lambda result: result["phases"][-1]["eps"])
    stale = report_tables.by_line(cells, "line", lambda result: result["phases"][-1]["staleness_mean"])
    rows = []
    for line, values in aucs.items():
        found = [None if line == other else report_tables.against(aucs, line, other) for other in BASELINES]
        differences = ["-" if each is None else report_tables.written(each, 4, "+", TARGET) for each in found]
        ratio = statistics.fmean(speeds[line][seed] / speeds["sync"][seed] for seed in values)
        numbers = [f"{statistics.fmean(values.values()):.5f}", *differences, f"{ratio:.2f}"]
        rows.append([line, *numbers, f"{statistics.fmean(stale[line].values()):.1f}"])
    heads = ("line", "AUC", *(f"minus {other}" for other in BASELINES), "EPS / sync's", "staleness, mean")
    note = f"+-: half of a 95 % interval over seeds; bold: it lies inside +-{TARGET}."
    return report_tables.markdown(heads, rows, note)


def main() -> None:
    """Write results.md."""
    STUDY.write("## Trials\n", tried(), "## On other data\n", CHOSEN.origin("reported"), reported())
