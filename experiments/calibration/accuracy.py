"""The table of this study: what was measured on real processes beside what the virtual cluster says. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

FITTED = (2, 4)
TARGET = 10.0
Record = dict[str, Any]


def lines(local: Sequence[Record], virtual: Sequence[Record]) -> list[tuple[Record, list[Record]]]:
    """Every virtual record with the local ones of the same mode and workers."""
    return [(v, [o for o in local if (o["mode"], o["workers"]) == (v["mode"], v["workers"])]) for v in virtual]


def error(predicted: Record, seen: Sequence[Record]) -> float:
    """Percent by which the prediction is off the mean."""
    return float(100 * (predicted["phase_eps"] / statistics.mean(o["phase_eps"] for o in seen) - 1))


def table(local: Sequence[Record], virtual: Sequence[Record]) -> str:
    """A line for every mode and number of workers, unseen ones last."""
    rows = ["| mode | workers | fitted on | n | local EPS | predicted EPS | error | others' cores |"]
    rows.append("| --- | ---: | --- | ---: | ---: | ---: | ---: | ---: |")
    for predicted, seen in sorted(lines(local, virtual), key=lambda line: line[0]["workers"]):
        eps = [o["phase_eps"] for o in seen]
        spread = f" +-{statistics.stdev(eps):,.0f}" if len(eps) > 1 else ""
        others = statistics.mean(o["others"] for o in seen)
        fitted = "yes" if predicted["workers"] in FITTED else "no"
        rows.append(
            f"| {predicted['mode']} | {predicted['workers']} | {fitted} | {len(eps)} | "
            f"{statistics.mean(eps):,.0f}{spread} | {predicted['phase_eps']:,.0f} | {error(predicted, seen):+.1f} % | "
            f"{others:.2f} |"
        )
    return "\n".join(rows)


def verdict(local: Sequence[Record], virtual: Sequence[Record]) -> str:
    """Whether every prediction for unseen workers is within the target, in a sentence."""
    unseen = [(abs(error(v, seen)), v["mode"]) for v, seen in lines(local, virtual) if v["workers"] not in FITTED]
    worst, mode = max(unseen)
    met = "met" if worst <= TARGET else "missed"
    return f"Target: unseen numbers of workers within {TARGET:g} %: {met}; the largest error is {worst:.1f} % ({mode})."


NOTES = """\
- local EPS: mean and standard deviation over n runs of `gbactl train`: `eps` of result.json, first hand-out to last
  announced gradient.
- predicted EPS: the same of one run with `cluster=virtual cost=experiments/calibration/calibrated.yaml`.
- fitted on: whether the calibration saw runs of that many workers; it did not see these runs.
- others' cores: what processes that are none of the run's used meanwhile, on the average. Runs during which that was
  more than 3 % of the cores were repeated, up to twice."""


def text(local: Sequence[Record], virtual: Sequence[Record], model: str) -> str:
    """results.md."""
    head = f"# Results\n\nWritten by `make calibration`.\n\n{table(local, virtual)}\n\n{verdict(local, virtual)}"
    return f"{head}\n\n{NOTES}\n\n## The cost model\n\n```yaml\n{model.rstrip()}\n```\n"
