"""Progress display of a run: a bar on a terminal, an occasional line on a pipe."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

from gbactl.engine.signals import leave_terminal
from gbactl.faults.measured_effects import fault_lines

LINE_SECONDS = 5.0


def unit_of(clock: str | None) -> str:
    """Return the unit of throughput for a clock: samples/s of real or of virtual time."""
    return "samples/virtual s" if clock == "virtual" else "samples/s"


class Terminal(Console):
    """Console that ignores write errors once its terminal is closed."""

    def print(self, *objects: Any, **options: Any) -> None:
        try:
            super().print(*objects, **options)
        except OSError:
            leave_terminal()


class ProgressDisplay:
    """Progress display on standard error; `unit`: unit of throughput.

    Standard output is for the result."""

    def __init__(self, unit: str = unit_of("wall")) -> None:
        self.unit = unit
        self.console = Terminal(stderr=True, highlight=False)
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._last_line = 0.0
        self._last_text = ""

    def say(self, text: str) -> None:
        """Print one line of text."""
        self.console.print(text, soft_wrap=not sys.stderr.isatty())

    def step(self, text: str, fraction: float) -> None:
        """Show the fraction (0 to 1) done of a preparation step, such as building the data cache."""
        self._update(text, fraction, "")

    def progress(self, fields: dict[str, Any]) -> None:
        """Show the progress of training; share and rate refer to the whole day or epoch."""
        share = fields["round_finished"] / fields["round_samples"] if fields["round_samples"] else 1.0
        loss = "" if fields["loss"] is None else f"loss {fields['loss']:.4f}"
        text = f"{fields['label']} of {fields['rounds']}"
        self._update(text, share, f"step {fields['step']}  {loss}  {fields['round_eps']:,.0f} {self.unit}")

    def _update(self, text: str, fraction: float, detail: str) -> None:
        if self.console.is_terminal:
            self._draw(text, fraction, detail)
            return
        now = time.monotonic()
        if now - self._last_line >= LINE_SECONDS or (fraction >= 1 and text != self._last_text):
            self._last_line = now
            self._last_text = text if fraction >= 1 else ""
            self.say(f"  {text}: {100 * fraction:3.0f} %  {detail}".rstrip())

    def _draw(self, text: str, fraction: float, detail: str) -> None:
        if self._bar is None:
            columns = (
                TextColumn("  {task.description}"), BarColumn(20), TextColumn("{task.percentage:>3.0f} %"),
                TimeRemainingColumn(compact=True), TextColumn("{task.fields[detail]}"),
            )  # fmt: skip
            self._bar = Progress(*columns, console=self.console, transient=True)
            self._bar.start()
            self._task = self._bar.add_task(text, total=1.0, detail="")
        assert self._task is not None
        self._bar.update(self._task, completed=fraction, description=text, detail=detail)

    def hosts(self, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Print the table of preflight results, one row for each host."""
        table = Table(*headings, box=None, pad_edge=False, header_style="bold")
        for row in rows:
            table.add_row(*row)
        self.console.print(table, soft_wrap=not self.console.is_terminal)

    def clear(self) -> None:
        """Remove the progress bar."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def round(self, fields: dict[str, Any]) -> None:
        """Print a line for a finished day or epoch, with the scores that early stopping compares."""
        self.clear()
        self.say(
            f"  {fields['day']}: {fields['steps']} steps, {fields['eps']:,.0f} {self.unit}; on "
            f"{fields['judged_on']}: AUC {fields['judged_auc']:.5f}, log loss {fields['judged_logloss']:.5f}"
        )

    def best(self, result: dict[str, Any]) -> None:
        """Print the chosen epoch and its scores, if another split was used to choose it."""
        if result["judged_on"] in (None, result["evaluated_on"]):
            return
        self.clear()
        self.say(
            f"  {result['best_round']} is the best on {result['judged_on']} (AUC {result['judged_auc']:.5f}); on "
            f"{result['evaluated_on']}: AUC {result['auc']:.5f}, log loss {result['logloss']:.5f}"
        )

    def result(self, result: dict[str, Any]) -> None:
        """Print the result on standard output: a summary table on a terminal, else JSON in one line."""
        self.clear()
        if not sys.stdout.isatty():
            print(json.dumps(result), flush=True)
            return
        table = Table(title=f"{result['mode']}, seed {result['seed']}", title_justify="left")
        table.add_column("what")
        table.add_column("value", justify="right")
        for name, value in _summary(result):
            table.add_row(name, value)
        Console().print(table)


def _summary(result: dict[str, Any]) -> list[tuple[str, str]]:
    samples, stale = result["samples"], result["staleness"]
    clock = result.get("virtual_seconds")
    virtual = [] if clock is None else [("virtual seconds", f"{clock:,.2f}")]
    ceiling = result.get("best_possible_auc")
    best = [] if ceiling is None else [("best possible AUC", f"{ceiling:.5f}")]
    return [
        ("AUC", f"{result['auc']:.5f}"),
        *best,
        ("log loss", f"{result['logloss']:.5f}"),
        ("normalised entropy", f"{result['ne']:.5f}"),
        (unit_of(result.get("clock")), f"{result['eps']:,.0f}"),
        *virtual,
        ("wall seconds", f"{result['wall_seconds']:.1f}"),
        ("samples read", f"{samples['read']:,}"),
        ("trained / decayed / lost", f"{samples['trained']:,} / {samples['decayed']:,} / {samples['lost']:,}"),
        ("staleness mean / p50 / p99", f"{stale['mean']:.2f} / {stale['p50']:.0f} / {stale['p99']:.0f}"),
        *_network(result),
        *(("fault", line) for line in fault_lines(result)),
        *(("warning", warning) for warning in result.get("warnings", ())),
        ("run directory", str(result["run_dir"])),
    ]


def _network(result: dict[str, Any]) -> list[tuple[str, str]]:
    """Return summary rows on bytes sent per step, bytes in shared memory and rejected frames, where there are any."""
    found: list[tuple[str, str]] = []
    wire, refused = result.get("wire"), result.get("refused_frames")
    if wire is not None:
        a_step, shared = wire["bytes_per_step"], wire["shared_memory"]
        sizes = " / ".join(f"{sent / 1e3:,.1f}" for sent in a_step.values())
        beside = f"; shared memory {shared / 1e6:,.1f} MB" if shared else ""
        found.append((f"kB a step: {' / '.join(a_step)}", sizes + beside))
    if refused:
        found.append(("refused (reasons: result.json)", f"{refused:,}"))
    return found
