"""AUC after a switch from sync to a mode, and from a mode to sync, against all-sync. Costs a second."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import report_tables
from study_results import Done

TARGET, BASELINE = 0.0005, "sync"
DIRECTIONS = {"to": "sync -> {}", "from": "{} -> sync"}
AFTER = {"d": "day", "e": "epoch"}


def name_of(line: str) -> str:
    """Name of a switch: sync -> gba."""
    way, mode, *how = line.split("-")
    return DIRECTIONS[way].format(mode) + "".join(f", {each}" for each in how)


def after(value: str) -> str:
    """What was trained before the switch: 3 days."""
    number, unit = value[1:], AFTER[value[0]]
    return f"{number} {unit}{'' if number == '1' else 's'}"


def table(cells: Sequence[Done]) -> str:
    """Markdown table, one line for each switch and what was trained before it."""
    rows, base = [], []
    for value in dict.fromkeys(cell.options["after"] for cell in cells):
        mine = [cell for cell in cells if cell.options["after"] == value]
        found = [
            report_tables.by_line(mine, "line", lambda result: result["phases"][0]["auc"]),
            report_tables.by_line(mine, "line", lambda result: result["phases"][-1]["auc"]),
        ]
        for line in dict.fromkeys(cell.options["line"] for cell in mine):
            if line != BASELINE:
                differences = [report_tables.against(aucs, line, BASELINE) for aucs in found]
                told = ["-" if each is None else report_tables.written(each, 4, "+", TARGET) for each in differences]
                rows.append([f"{name_of(line)}, after {after(value)}", *told])
        last = statistics.fmean(found[-1][BASELINE].values())
        base.append(f"{last:.5f} for switches after {after(value)}")
    seeds = len({cell.seed for cell in cells})
    notes = (
        f"AUC minus that of all-sync with the same seed, in the first and the last evaluation after the switch; "
        f"{seeds} seeds.",
        f"+-: half of a 95 % interval; bold: it lies inside +-{TARGET}. anew: the switch resets the optimizer's state.",
        f"AUC of all-sync at the end of the runs: {'; '.join(base)}.",
    )
    return report_tables.markdown(("switch", "first", "last"), rows, *notes)


def rates(cells: Sequence[Done]) -> str:
    """Markdown table of sync's AUC by optimizer and learning rate, beside the best possible one."""
    rows = []
    for cell in cells:
        possible = cell.result["best_possible_auc"]
        name = f"{cell.options['optim']}, {cell.options['optim.lr']}"
        rows.append([name, f"{cell.result['auc']:.5f}", f"{possible - cell.result['auc']:.5f}"])
    seeds = ", ".join(sorted({cell.seed for cell in cells}))
    note = f"All runs are in sync with seed {seeds}, which no other part reports."
    return report_tables.markdown(("optimizer and learning rate", "AUC", "below the best possible AUC"), rows, note)
