"""Markdown tables of this study's cells: pure functions of options and result.json.

A figure is a mean over seeds +- half of a 95 % t interval, of differences or ratios in pairs of the same seed.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import report_tables  # scripts of the parent folder, not a package
from study_results import Done

LINEAR, NEUTRAL, AUC_LOSS = 0.95, 0.02, 0.0005  # targets of the study
SATURATED = 95


def written(values: Sequence[float], digits: int, bold: Callable[[float], bool] = lambda mean: False) -> str:
    """Format a cell; bold where its mean meets a target."""
    if not values:
        return "-"
    text = report_tables.written(values, digits)
    return f"**{text}**" if bold(report_tables.mean_of(values).mean) else text


def markdown(first: str, titles: Sequence[str], rows: Mapping[str, Sequence[str]], *notes: str) -> str:
    """Format a table with its notes below."""
    return report_tables.markdown((first, *titles), ([name, *cells] for name, cells in rows.items()), *notes)


def by(cells: Iterable[Done], *keys: str) -> dict[tuple[str, ...], dict[str, dict[str, Any]]]:
    """Group results by options: {values of the options: {seed: result}}."""
    found: defaultdict[tuple[str, ...], dict[str, dict[str, Any]]] = defaultdict(dict)
    for cell in cells:
        found[tuple(cell.options[key] for key in keys)][cell.seed] = cell.result
    return dict(found)


def ordered(cells: Iterable[Done], key: str) -> list[str]:
    """Values of an option in the order of the cells."""
    return list(dict.fromkeys(cell.options[key] for cell in cells))


def scaling(cells: Sequence[Done]) -> str:
    """Table of part 1: EPS over n times one trainer's."""
    found, trainers = by(cells, "line", "cluster.workers"), ordered(cells, "cluster.workers")
    rows = {}
    for line in ordered(cells, "line"):
        alone = found[line, trainers[0]]
        ratios = {
            n: [each["eps"] / int(n) / alone[seed]["eps"] for seed, each in found[line, n].items()] for n in trainers
        }
        most = max(trainers, key=lambda n: statistics.fmean(each["eps"] for each in found[line, n].values()))
        eps = [each["eps"] for each in found[line, most].values()]
        cells_of = [written(ratios[n], 3, lambda mean: mean >= LINEAR) for n in trainers]
        rows[line] = [*cells_of, f"{written(eps, 0)} at {most}"]
    note = f"Each number is EPS / (number of trainers x EPS of one trainer of the line); bold: at least {LINEAR}."
    more = "most EPS: the largest EPS of the line, and the number of trainers with which it was measured."
    return markdown("EPS, by trainers", [*trainers, "most EPS"], rows, note, more)


def centre(cells: Sequence[Done]) -> str:
    """Table of part 1: time of an exchange with the EASGD centre, and load of its server's network interface."""
    found, trainers = by(cells, "line", "cluster.workers"), ordered(cells, "cluster.workers")
    rows = {}
    for line in ordered(cells, "line"):
        at = [found[line, n].values() for n in trainers]
        rows[f"{line}: ms"] = [written([each["replicas"]["exchange_ms"] for each in cell], 1) for cell in at]
        shares = [[100 * each["busy"]["S0"] for each in cell] for cell in at]
        rows[f"{line}: busy %"] = [written(cell, 0, lambda mean: mean >= SATURATED) for cell in shares]
    note = (
        "ms: the duration of an exchange from the moment when a trainer begins it; bold: the sync server is busy for "
        f"{SATURATED} % of the time or more."
    )
    return markdown("the sync server, by trainers", trainers, rows, note)


def quality(cells: Sequence[Done]) -> str:
    """Table of part 2: relative change of log loss against one trainer, and shadow against foreground."""
    found, trainers = by(cells, "line", "cluster.workers"), ordered(cells, "cluster.workers")
    rows = {}
    for line in ordered(cells, "line"):
        rows[line] = [
            written([100 * (each["logloss"] / found[line, trainers[0]][seed]["logloss"] - 1)
                     for seed, each in found[line, n].items()], 3)
            for n in trainers
        ]  # fmt: skip
    for line in [line for line in ordered(cells, "line") if line.startswith("shadow_")]:
        other = line.replace("shadow_", "fr_").partition("-")[0]  # the suffix is a pause
        rows[f"{line} against {other}"] = [
            written([100 * (each["logloss"] / found[other, n][seed]["logloss"] - 1)
                     for seed, each in found[line, n].items()], 3, lambda mean: mean <= NEUTRAL)
            for n in trainers
        ]  # fmt: skip
    notes = (
        "Each number is the change of the log loss in %, against one trainer of the line or against its fr mode.",
        f"bold: the log loss is at most {NEUTRAL} % higher.",
    )
    return markdown("log loss, by trainers", trainers, rows, *notes)


def parallelism(cells: Sequence[Done]) -> str:
    """Table of part 3: AUC against one trainer's by ELP, and the largest ELP that loses no more than .0005."""
    found: defaultdict[str, dict[int, dict[str, float]]] = defaultdict(dict)
    for cell in cells:
        elp = cell.result["replicas"]["elp"]
        found[cell.options["line"]].setdefault(elp, {})[cell.seed] = cell.result["auc"]
    sizes = sorted({elp for row in found.values() for elp in row})
    rows = {}
    for line, row in found.items():
        lost = {elp: [auc - row[sizes[0]][seed] for seed, auc in row[elp].items()] for elp in sizes}
        kept = [elp for elp in sizes if statistics.fmean(lost[elp]) >= -AUC_LOSS]
        rows[line] = [*(written(lost[elp], 4, lambda mean: mean >= -AUC_LOSS) for elp in sizes), f"{max(kept):,}"]
    titles = [*(f"ELP {elp:,}" for elp in sizes), "largest"]
    return markdown("AUC, by ELP", titles, rows, f"AUC minus that of one trainer; bold: at least -{AUC_LOSS}.")


COLUMNS: dict[str, tuple[Callable[[Mapping[str, Any]], float | None], int]] = {
    "AUC": (lambda r: r["auc"], 5),
    "log loss": (lambda r: r["logloss"], 5),
    "NE": (lambda r: r["ne"], 5),
    "EPS": (lambda r: r["phases"][-1]["eps"], 0),
    "staleness": (lambda r: r["phases"][-1]["staleness_mean"], 2),
    "sync gap": (lambda r: _gap(r, "mean"), 2),
    "gap p99": (lambda r: _gap(r, "p99"), 0),
    "ELP": (lambda r: r["replicas"]["elp"] if "replicas" in r else None, 0),
    "foreground s": (lambda r: r["replicas"]["foreground_seconds"] if "replicas" in r else None, 2),
    "replicas' MB": (lambda r: r["replicas"]["bytes_exchanged"] / 1e6 if "replicas" in r else None, 0),
}


def _gap(result: Mapping[str, Any], name: str) -> float | None:
    told = result.get("replicas")
    return told["sync_gap"][name] if told and told["exchanges"] else None


def listing(cells: Sequence[Done], key: str) -> str:
    """Table of parts 4 and 5: one line a setting, mean +- half of the 95 % interval.

    AUC also against the first setting.
    """
    found, names = by(cells, key), ordered(cells, key)
    first, *columns = COLUMNS
    rows = {}
    for name in names:
        results, base = found[name,], found[names[0],]
        change = [each["auc"] - base[seed]["auc"] for seed, each in results.items()] if name != names[0] else []
        told = {title: _column(title, results.values()) for title in COLUMNS}
        rows[name] = [told[first], written(change, 5), *(told[title] for title in columns)]
    notes = (
        f"change: the AUC minus that of {names[0]} with the same seed; staleness: of the gradients of rows, in steps."
    )
    more = "EPS and staleness are those of the day in the mode; replicas' MB: bytes sent in exchanges of replicas."
    return markdown(key, [first, "change", *columns], rows, notes, more)


def _column(title: str, results: Iterable[Mapping[str, Any]]) -> str:
    read, digits = COLUMNS[title]
    return written([value for value in map(read, results) if value is not None], digits)
