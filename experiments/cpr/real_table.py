"""Table of study 3: cost of three kills for a job of real processes, in time and in samples, as Markdown. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from report_tables import markdown  # scripts of the parent folder, not a package
from study_results import Done

KINDS = {"S": "server", "W": "worker", "C": "coordinator"}  # by the first letter of a process
HEADS = ("seconds", "longer, s", "longer %", "never trained", "of all, %", "lost updates", "PLS", "AUC", "AUC - none")
FAILED_HEADS = ("noticed", "replaced", "useful", "samples undone", "lost updates")


def trained(result: dict[str, Any]) -> float:
    """Seconds of training, without start and end of the run."""
    return float(sum(phase["seconds"] for phase in result["phases"]))


def job(cell: Done, plain: Done) -> list[str]:
    """Cells of a job in which processes were killed, compared with the same job without kills."""
    result, none = cell.result, plain.result
    seconds, before, samples = trained(result), trained(none), result["samples"]
    return [
        f"{before:.0f}", f"{seconds - before:+.1f}", f"{100 * (seconds / before - 1):+.1f}",
        f"{samples['lost']:,}", f"{100 * samples['lost'] / samples['read']:.3f}",
        f"{sum(each['row_updates_undone'] for each in result['recovery']):,}", f"{result['checkpoint']['pls']:.4f}",
        f"{none['auc']:.5f}", f"{result['auc'] - none['auc']:+.5f}",
    ]  # fmt: skip


def failure(failed: dict[str, Any]) -> list[str]:
    """Cells of one failure, in seconds since the kill."""
    times = (failed[name] for name in ("detected_s", "loaded_s", "useful_s"))
    return [
        *("-" if time is None else f"{time:.2f}" for time in times),
        f"{failed['samples_undone']:,}", f"{failed['row_updates_undone']:,}",
    ]  # fmt: skip


def table(cells: Sequence[Done], none: Sequence[Done]) -> str:
    """Table with a line for each job, then one for each failure."""
    plain = {(cell.options["mode"], cell.seed): cell for cell in none}
    jobs, failed = [], []
    for cell in cells:
        mode = cell.options["mode"]
        jobs.append([mode, cell.seed, *job(cell, plain[mode, cell.seed])])
        failed += [[mode, KINDS[each["process"][0]], *failure(each)] for each in cell.result["recovery"]]
    notes = (
        "seconds: the training time of the job without kills and checkpoints, with real processes on one machine; "
        "longer: how much longer the job takes with three kills and with checkpoints. Each time is from one run.",
        "sync uses Horovod, and an all-reduce in shared memory after the worker's failure.",
        "never trained: samples that were read but are in no step (`lost` in the accounting); samples undone: samples "
        "trained between the last checkpoint of the failed server and its failure, counted for its shard alone; lost "
        "updates: row updates of this shard that were undone; PLS: the undone samples as a share of all samples, "
        "divided by the number of servers.",
        "noticed, replaced, useful: seconds from the kill until the failure was detected, until the successor was "
        "ready, and until the successor did useful work.",
    )
    first = markdown(("mode", "seed", *HEADS), jobs)
    return first + markdown(("mode", "killed", *FAILED_HEADS), failed, *notes, names=(0, 1))
