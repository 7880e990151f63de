"""Accuracy table of this study: EPS measured on real processes beside the virtual cluster's predictions. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from report_tables import markdown  # a script of the parent folder, not a package

FITTED = (2, 4)
TARGET = 10.0
HEADS = ("mode", "workers", "fitted on", "n", "local EPS", "predicted EPS", "error", "others' cores")
Record = dict[str, Any]


def lines(local: Sequence[Record], virtual: Sequence[Record]) -> list[tuple[Record, list[Record]]]:
    """Match every virtual record with the local ones of the same mode and workers."""
    return [(v, [o for o in local if (o["mode"], o["workers"]) == (v["mode"], v["workers"])]) for v in virtual]


def error(predicted: Record, seen: Sequence[Record]) -> float:
    """Error of the prediction in percent of the measured mean."""
    return float(100 * (predicted["phase_eps"] / statistics.mean(o["phase_eps"] for o in seen) - 1))


def table(local: Sequence[Record], virtual: Sequence[Record]) -> str:
    """Table with a line for every mode and number of workers, those not fitted on last."""
    rows = []
    for predicted, seen in sorted(lines(local, virtual), key=lambda line: line[0]["workers"]):
        eps = [o["phase_eps"] for o in seen]
        spread = f" +-{statistics.stdev(eps):,.0f}" if len(eps) > 1 else ""
        others = statistics.mean(o["others"] for o in seen)
        fitted = "yes" if predicted["workers"] in FITTED else "no"
        rows.append([
            predicted["mode"], str(predicted["workers"]), fitted, str(len(eps)),
            f"{statistics.mean(eps):,.0f}{spread}", f"{predicted['phase_eps']:,.0f}",
            f"{error(predicted, seen):+.1f} %", f"{others:.2f}",
        ])  # fmt: skip
    return markdown(HEADS, rows, names=(0, 2)).rstrip()


def verdict(local: Sequence[Record], virtual: Sequence[Record]) -> str:
    """Sentence on whether every prediction for numbers of workers outside of the fit is within the target."""
    unseen = [(abs(error(v, seen)), v["mode"]) for v, seen in lines(local, virtual) if v["workers"] not in FITTED]
    worst, mode = max(unseen)
    met = "met" if worst <= TARGET else "missed"
    return (
        f"Target: for numbers of workers outside of the fit, the error is at most {TARGET:g} %: {met}; the largest "
        f"error is {worst:.1f} % ({mode})."
    )


NOTES = """\
- local EPS: mean and standard deviation over n runs of `gbactl train` (`eps` of result.json).
- predicted EPS: the EPS of one run with `cluster=virtual cost=experiments/calibration/calibrated.yaml`.
- fitted on: whether the fit used runs with this number of workers; no run of this table was part of the fit.
- others' cores: the cores that processes outside of the run used during the run, on average. Runs in which these were
  more than 3 % of the cores were repeated, up to twice."""


def text(local: Sequence[Record], virtual: Sequence[Record], model: str) -> str:
    """Text of results.md."""
    head = f"# Results\n\nWritten by `make calibration`.\n\n{table(local, virtual)}\n\n{verdict(local, virtual)}"
    return f"{head}\n\n{NOTES}\n\n## The cost model\n\n```yaml\n{model.rstrip()}\n```\n"
