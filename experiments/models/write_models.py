"""Write results.md: each model's AUC on Frappe against the published one, and every mode against sync by model.

Reads cells.jsonl, in a second; models and seeds without a cell are left out. Part of `make models`.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

from report_tables import against, by_line, markdown, written
from study_results import Done, Results

STUDY = Results(Path(__file__).resolve().with_name("sweep.yaml"))
#: test AUC in Frappe_x1 (reczoo/BARS): means of five runs; of one for dlrm, autoint, masknet and finalmlp
PUBLISHED = {
    "deepfm": 0.98395, "xdeepfm": 0.98414, "dcnv2": 0.98382, "dlrm": 0.9840, "autoint": 0.9831, "masknet": 0.9837,
    "finalmlp": 0.9861, "wide_deep": 0.98307,
}  # fmt: skip
OF_HISTORIES = ("din", "dien", "youtube_dnn")
NEAR, SAME = 0.0015, 0.0005  # AUC: of sync from the published one, of gba from sync
NEGATIVES = (
    "The validation and test files are the benchmark's own; the negative samples of the training file were drawn anew. "
    "The learning rate follows a cosine, and the L2 weight of the rows is .1 for every model."
)


def model(cell: Done) -> str:
    """Model of a cell."""
    return cell.options["model"]


def of_model(cells: Sequence[Done], name: str) -> list[Done]:
    """Cells of a model."""
    return [cell for cell in cells if model(cell) == name]


def differences(cells: Sequence[Done], name: str, modes: Sequence[str]) -> list[str]:
    """AUC of each mode minus that of sync, over pairs of one seed; bold where the whole interval is within SAME.

    The number of pairs stands beside it where seeds are missing, as of runs that diverged."""
    values = by_line(of_model(cells, name), "mode", lambda result: float(result["auc"]))
    sync, found = values.get("sync", {}), []
    for mode in modes:
        each, pairs = against(values, mode, "sync"), len(sync.keys() & values.get(mode, {}).keys())
        beside = f" ({pairs} of {len(sync)})" if pairs < len(sync) else ""
        found.append("-" if each is None else written(each, 5, "+", SAME) + beside)
    return found


def tried(cells: Sequence[Done]) -> str:
    """Table of what was tried for autoint, which misses its published AUC."""
    weights = [(cell.options.get("optim.row_weight_decay", "0.1"), float(cell.result["auc"])) for cell in cells]
    rows = [["24", weight, f"{auc:.5f}", f"{auc - PUBLISHED['autoint']:+.5f}"] for weight, auc in weights]
    return markdown(["epochs", "L2 weight of the rows", "sync", "off"], rows, STUDY.origin("autoint").strip())


def speed(cells: Sequence[Done]) -> str:
    """Table of the models on Frappe: EPS of sync and of gba on real processes, and their ratio over pairs of a seed."""
    rows = []
    for name in PUBLISHED:
        rates = by_line(of_model(cells, name), "mode", lambda result: float(result["eps"]))
        sync, gba = rates.get("sync", {}), rates.get("gba", {})
        both = [seed for seed in gba if seed in sync]
        if both:
            means = (f"{statistics.fmean(found[seed] for seed in both):,.0f}" for found in (sync, gba))
            rows.append([f"`{name}`", str(len(both)), *means, written([gba[seed] / sync[seed] for seed in both], 2)])
    heads = ["model", "seeds", "EPS of sync", "EPS of gba", "EPS, gba / sync"]
    return markdown(heads, rows, STUDY.origin("speed").strip())


def frappe(cells: Sequence[Done]) -> str:
    """Table of the models on Frappe: published and measured AUC, and gba against sync."""
    rows = []
    for name, published in PUBLISHED.items():
        here = of_model(cells, name)
        sync = list(by_line(here, "mode", lambda result: float(result["auc"])).get("sync", {}).values())
        if not sync:
            continue
        off = statistics.fmean(sync) - published
        spread = f" +-{statistics.stdev(sync):.5f}" if len(sync) > 1 else ""
        rows.append([
            f"`{name}`", str(len(sync)), f"{published:.5f}", f"{statistics.fmean(sync):.5f}{spread}",
            f"{off:+.5f}", "yes" if abs(off) <= NEAR or off > 0 else "no", *differences(here, name, ("gba",)),
        ])  # fmt: skip
    heads = ["model", "seeds", "published", "sync", "off", f"at most {NEAR} below", "gba - sync"]
    notes = ("sync: mean +- standard deviation over the seeds.", NEGATIVES, STUDY.origin("frappe").strip())
    return markdown(heads, rows, *notes, names=(0, 5))


def synthetic(cells: Sequence[Done], part: str = "synthetic") -> str:
    """Table of the models on synthetic data with a slow worker: AUC of every mode against sync."""
    modes = ("gba", "hop_bs", "async")
    rows = []
    for name in (*PUBLISHED, *OF_HISTORIES):
        here = [cell for cell in of_model(cells, name) if cell.options["mode"] == "sync"]
        if here:
            mean = statistics.fmean(float(cell.result["auc"]) for cell in here)
            rows.append([f"`{name}`", str(len(here)), f"{mean:.5f}", *differences(cells, name, modes)])
    heads = ["model", "seeds", "sync", *(f"{mode} - sync" for mode in modes)]
    notes = (
        f"Bold: the whole 95 % interval is within +-{SAME}.",
        "EPS is not compared, because the modelled time does not depend on the model.",
    )
    return markdown(heads, rows, *notes, STUDY.origin(part).strip())


def sequences(cells: Sequence[Done]) -> str:
    """Table of the models that read histories, in the form of `synthetic`."""
    return synthetic(cells, "sequences")


def rates(cells: Sequence[Done]) -> str:
    """Table of the models in sync by learning rate: AUC, bold where it is the highest of a model."""
    values = sorted({cell.options["optim.lr"] for cell in cells}, key=float)
    rows = []
    for name in (*PUBLISHED, *OF_HISTORIES):
        found = {cell.options["optim.lr"]: float(cell.result["auc"]) for cell in of_model(cells, name)}
        if found:
            best = max(found, key=found.__getitem__)
            marks = {rate: "**" if rate == best else "" for rate in found}
            rows.append([f"`{name}`", *(f"{marks[r]}{found[r]:.5f}{marks[r]}" if r in found else "-" for r in values)])
    heads = ["model", *(f"learning rate {rate}" for rate in values)]
    return markdown(heads, rows, "Bold: the highest AUC of a model.", STUDY.origin("rates").strip())


def main() -> None:
    """Write results.md."""
    tables = {
        "frappe": frappe, "autoint": tried, "speed": speed, "synthetic": synthetic, "sequences": sequences,
        "rates": rates,
    }  # fmt: skip
    found = {name: STUDY.found(name) for name in tables}
    STUDY.write(*(f"## {name.capitalize()}\n\n{tables[name](cells)}" for name, cells in found.items() if cells))
