"""Progress display of a run, its result, and the commands that are suggested when the run ends.

On a terminal the display is one bar for the whole job, on a pipe an occasional line. In a notebook, where a run was
started from Python, the bar is HTML that is renewed in place; it needs nothing beside IPython.
"""

from __future__ import annotations

import html
import shlex
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Column, Table

from gbactl.checkpoint.folder import CHECKPOINTS, CheckpointFolder
from gbactl.config import RunConfig, TrackingConfig
from gbactl.engine.stop_signals import leave_terminal
from gbactl.errors import GbactlError
from gbactl.faults.observed_effects import fault_lines
from gbactl.tracking.run_description import CommandLine, SweepPlace

if TYPE_CHECKING:
    from gbactl.data.dataset import Dataset

LINE_SECONDS = 5.0
WINDOW_SECONDS = 30.0  # of progress from which throughput and remaining time are computed
LEAST_BAR, LONGEST_BAR = 4, 30  # columns


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


class JobProgress:
    """Share, throughput and remaining seconds of a job of `samples` samples, from its progress events.

    Throughput and pace are those of the present mode; right after a switch the pace is still that of the mode before.
    Where `samples` is 0, the share is that of the round. `auc`: that of the last evaluation; `loss`: the last known."""

    def __init__(self, samples: int = 0) -> None:
        self.samples, self.share, self.rate = samples, 0.0, 0.0
        self.auc: float | None = None
        self.loss: float | None = None
        self._at: tuple[str, str] = ("", "")
        self._done: deque[tuple[float, int]] = deque()  # times and samples of this mode's events
        self._rates: deque[float] = deque(maxlen=30)
        self._pace: float | None = None  # samples in a second of this process's clock, evaluations included

    def add(self, fields: dict[str, Any], now: float) -> None:
        """Add a progress event that arrived at `now`, in seconds."""
        done, at = int(fields["samples"]), (fields["mode"], fields["label"])
        if at[0] != self._at[0] or (self._done and done < self._done[-1][1]):  # a switch, or a recovery
            self._done.clear()
        if at != self._at:  # the first event of a phase has no throughput yet
            self._at = at
            self._rates.clear()
        elif fields["eps"] is not None:
            self._rates.append(fields["eps"])
        self.loss = self.loss if fields["loss"] is None else fields["loss"]
        self._done.append((now, done))
        while len(self._done) > 2 and now - self._done[1][0] >= WINDOW_SECONDS:
            self._done.popleft()
        (before, first), (after, last) = self._done[0], self._done[-1]
        if last > first and after > before:
            self._pace = (last - first) / (after - before)
        self.rate = sum(self._rates) / len(self._rates) if self._rates else fields["round_eps"]
        of = self.samples or fields["round_samples"]
        self.share = min(1.0, (done if self.samples else fields["round_finished"]) / of) if of else 1.0

    @property
    def seconds_left(self) -> float | None:
        """Seconds until all samples are trained; None while the pace is unknown."""
        if self._pace is None or not self.samples:
            return None
        return (1.0 - self.share) * self.samples / self._pace


class ProgressDisplay:
    """Progress display on standard error; `unit`: unit of throughput.

    Standard output is for the result. `job` is the progress of the present run. One in a sweep, with its `place`, is
    shown by the sweep's bar and one line at its end."""

    def __init__(self, unit: str = unit_of("wall"), place: SweepPlace | None = None) -> None:
        self.unit, self.place = unit, place
        self.began = time.monotonic()
        self.console = Terminal(stderr=True, highlight=False)
        self.job = JobProgress()
        self._bar: Progress | None = None
        self._length = BarColumn(LONGEST_BAR)
        self._last_line = 0.0
        self._last_text = ""

    def print_line(self, text: str) -> None:
        """Print one line of text without breaking it: the terminal wraps it, so that a copy has no line breaks."""
        self.console.print(text, soft_wrap=True)

    def print_detail(self, text: str) -> None:
        """Print one line of text, unless the run is one of a sweep."""
        if self.place is None:
            self.print_line(text)

    def show_step(self, text: str, fraction: float) -> None:
        """Show the fraction (0 to 1) done of a preparation step, such as building the data cache."""
        self._update(text, fraction, [])

    def show_progress(self, fields: dict[str, Any]) -> None:
        """Show the progress of the whole job: day, mode, remaining time, throughput, last AUC, loss."""
        job, place, now = self.job, self.place, time.monotonic()
        job.add(fields, now)
        left = job.seconds_left if place is None else place.seconds_left(now - self.began, job.seconds_left)
        details = [] if left is None else [f"{duration(left)} left"]
        details.append(f"{job.rate:,.0f} {self.unit}")
        details += [] if job.auc is None else [f"AUC {job.auc:.4f}"]
        details += [] if job.loss is None else [f"loss {job.loss:.3f}"]
        text, share = f"{fields['label']} of {fields['rounds']}, {fields['mode']}", job.share
        if place is not None:
            text, share = f"{place}, {text}", (place.number - 1 + share) / place.of
        self._update(text, share, details)

    def _update(self, text: str, fraction: float, details: list[str]) -> None:
        details = [f"{100 * fraction:3.0f} %", *details]
        if self.console.is_terminal:
            self._draw(text, fraction, details)
            return
        now = time.monotonic()
        if now - self._last_line >= LINE_SECONDS or (fraction >= 1 and text != self._last_text):
            self._last_line = now
            self._last_text = text if fraction >= 1 else ""
            self.print_line(f"  {text}: {'  '.join(details)}")

    def _draw(self, text: str, fraction: float, details: list[str]) -> None:
        """Draw the bar in the columns that the text leaves free.

        What does not fit is written shorter, then without the percentage that the bar shows, then without the last
        details."""

        def free() -> int:
            return self.console.width - len(f"  {text}  {' '.join(details)}")

        if free() < LEAST_BAR:
            text, details = text.replace(" of ", "/"), [each.replace(" samples/", "/") for each in details]
        if free() < LEAST_BAR:
            details = details[1:] or details
        while free() < LEAST_BAR and len(details) > 1:
            details = details[:-1]
        detail = " ".join(details)
        self._length.bar_width = max(LEAST_BAR, min(LONGEST_BAR, free()))
        if self._bar is None:
            columns = TextColumn("  {task.description}"), self._length, TextColumn("{task.fields[detail]}")
            self._bar = Progress(*columns, console=self.console, transient=True)
            self._bar.start()
            self._bar.add_task(text, total=1.0, detail="")
        self._bar.update(self._bar.task_ids[0], completed=fraction, description=text, detail=detail)

    def show_hosts(self, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Print the table of preflight results, one row for each host."""
        columns = [Column(heading, overflow="fold") for heading in headings]
        table = Table(*columns, box=None, pad_edge=False, header_style="bold")
        for row in rows:
            table.add_row(*row)
        self.console.print(table, soft_wrap=not self.console.is_terminal)

    def clear(self) -> None:
        """Remove the progress bar."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def show_round(self, fields: dict[str, Any]) -> None:
        """Print a line for a finished day or epoch, with the scores that early stopping compares."""
        self.job.auc = fields["judged_auc"]
        self.print_detail(
            f"  {fields['day']}: {fields['steps']} steps, {fields['eps']:,.0f} {self.unit}; on "
            f"{fields['judged_on']}: AUC {score(fields['judged_auc'])}, log loss {score(fields['judged_logloss'])}"
        )

    def show_best(self, result: dict[str, Any]) -> None:
        """Print the chosen epoch and its scores, if it was chosen on another split than the evaluated one."""
        if result["judged_on"] in (None, result["evaluated_on"]):
            return
        self.clear()
        self.print_detail(
            f"  {result['best_round']} is the best on {result['judged_on']} (AUC {score(result['judged_auc'])}); on "
            f"{result['evaluated_on']}: AUC {score(result['auc'])}, log loss {score(result['logloss'])}"
        )

    def show_end(self, result: dict[str, Any], name: str) -> None:
        """Print the result of a sweep's run on standard output: one line."""
        self.clear()
        print(
            f"{self.place}: {name}: AUC {score(result['auc'])}, log loss {score(result['logloss'])}, "
            f"{result['eps']:,.0f} {self.unit}, {duration(result['wall_seconds'])}, "
            f"{shown_path(Path(result['run_dir']))}", flush=True,
        )  # fmt: skip

    def show_result(self, result: dict[str, Any], commands: Sequence[tuple[str, str]] = ()) -> None:
        """Print the result on standard output: a table, the run's directory, and `commands` to type next.

        `commands` are pairs of a purpose and a command. Nothing that one may copy is cut off or broken."""
        self.clear()
        table = Table(title=f"{result['mode']}, seed {result['seed']}", title_justify="left")
        table.add_column("what", no_wrap=True)
        table.add_column("value", justify="right", overflow="fold")
        for name, value in _summary(result):
            table.add_row(name, value)
        Console().print(table)
        lines = [("run directory", shown_path(Path(result["run_dir"]))), *commands]
        width = max(len(purpose) for purpose, _ in lines)
        print("\n".join(f"{f'{purpose}:':<{width + 1}} {text}" for purpose, text in lines), flush=True)


def prepared(cfg_data: Mapping[str, Any], show: ProgressDisplay) -> Dataset:
    """Open the configured data, which are prepared first if need be. Raises ConfigError and DataError.

    The progress bar is removed in every case: while it is drawn, the terminal has no cursor."""
    from gbactl.data.cache import prepare
    from gbactl.data.dataset import open_dataset

    try:
        return open_dataset(prepare(cfg_data, show.show_step))
    finally:
        show.clear()


def shown_path(path: Path) -> str:
    """Return a path as it is typed in the working directory: relative, if it is below."""
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def duration(seconds: float) -> str:
    """Format a duration as minutes and seconds, 2:05, or with hours, 1:02:05."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def score(value: float | None) -> str:
    """Format a quality metric; None: it is undefined, as all labels are of one class."""
    return "undefined (labels of one class)" if value is None else f"{value:.5f}"


def _summary(result: dict[str, Any]) -> list[tuple[str, str]]:
    samples, stale = result["samples"], result["staleness"]
    clock = result.get("virtual_seconds")
    virtual = [] if clock is None else [("virtual seconds", f"{clock:,.2f}")]
    ceiling = result.get("best_possible_auc")
    best = [] if ceiling is None else [("best possible AUC", f"{ceiling:.5f}")]
    return [
        ("AUC", score(result["auc"])),
        *best,
        ("log loss", score(result["logloss"])),
        ("normalised entropy", score(result["ne"])),
        (unit_of(result.get("clock")), f"{result['eps']:,.0f}"),
        *virtual,
        ("wall seconds", f"{result['wall_seconds']:.1f}"),
        ("samples read", f"{samples['read']:,}"),
        ("trained / decayed / lost", f"{samples['trained']:,} / {samples['decayed']:,} / {samples['lost']:,}"),
        ("staleness mean / p50 / p99", f"{stale['mean']:.2f} / {stale['p50']:.0f} / {stale['p99']:.0f}"),
        *_network(result),
        *(("fault", line) for line in fault_lines(result)),
        *(("warning", warning) for warning in result.get("warnings", ())),
    ]


def _network(result: dict[str, Any]) -> list[tuple[str, str]]:
    """Return summary rows on bytes sent per step, bytes in shared memory and rejected frames, if there are any."""
    found: list[tuple[str, str]] = []
    wire, refused = result.get("wire"), result.get("refused_frames")
    if wire is not None:
        a_step, shared = wire["bytes_per_step"], wire["shared_memory"]
        sizes = ", ".join(f"{kind} {sent / 1e3:,.1f}" for kind, sent in a_step.items())
        beside = f"; shared memory {shared / 1e6:,.1f} MB" if shared else ""
        found.append(("kB a step", sizes + beside))
    if refused:
        found.append(("refused (reasons: result.json)", f"{refused:,}"))
    return found


def after_run(
    cfg: RunConfig, command: CommandLine, result: Mapping[str, Any], compose: Callable[[list[str]], RunConfig]
) -> list[tuple[str, str]]:
    """List what to type after a finished run, as pairs of a purpose and a command.

    `compose` raises GbactlError for overrides that do not go together; these are not proposed. A checkpoint is resumed
    in another mode in a new directory only."""
    run_dir = Path(result["run_dir"])
    found = []
    typed = command.overrides_by_key()
    if command.verb == "train" and not cfg.switch.schedule and ("run_dir" in typed or "resume" not in typed):
        other = _in_mode(command, "gba" if cfg.mode.name == "sync" else "sync")
        with suppress(GbactlError):
            compose(list(other.overrides))
            found.append(("another mode", other.text))
    found += after_runs(cfg.tracking) if cfg.tracking.enabled else []
    if CheckpointFolder(run_dir / CHECKPOINTS).names():
        found.append(("take its model", f"gbactl checkpoint export {shlex.quote(shown_path(run_dir))}"))
    return found


def after_runs(tracking: TrackingConfig, sweep: str = "") -> list[tuple[str, str]]:
    """List the commands that show tracked runs beside each other; `sweep`: MLflow id of their sweep, if any."""
    store = "" if tracking.uri is None else f" --uri {shlex.quote(tracking.uri)}"
    experiment = "" if tracking.experiment == "gbactl" else f" --experiment {shlex.quote(tracking.experiment)}"
    chosen = f" --sweep {sweep[:8]}" if sweep else ""
    return [("compare runs", f"gbactl report{experiment}{chosen}{store}"), ("look at them", f"gbactl ui{store}")]


def _in_mode(command: CommandLine, mode: str) -> CommandLine:
    """Return the command of the same run in another mode and directory, with the keys of `mode` left out."""
    kept = tuple(each for each in command.overrides if not each.lstrip("+").startswith(("mode=", "mode.")))
    kept = tuple(f"{each}-{mode}" if each.startswith("run_dir=") else each for each in kept)
    return replace(command, overrides=(*kept, f"mode={mode}"))


def display() -> type[ProgressDisplay]:
    """Choose the progress display for where this process runs."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return NotebookDisplay if hasattr(shell, "kernel") else PythonDisplay


class PythonDisplay(ProgressDisplay):
    """Display for a Python script, which gets the result as a return value instead of printed output."""

    def show_result(self, result: dict[str, Any], commands: Sequence[tuple[str, str]] = ()) -> None:
        """Remove the progress bar."""
        self.clear()


class NotebookDisplay(PythonDisplay):
    """Progress bar in the output of a notebook's cell; everything else is printed there as text."""

    def __init__(self, unit: str, place: SweepPlace | None = None) -> None:
        super().__init__(unit, place)
        self._handle: Any = None
        self._shown = ""

    def print_line(self, text: str) -> None:
        """Print one line of text."""
        print(text, flush=True)

    def _update(self, text: str, fraction: float, details: list[str]) -> None:
        if text != self._shown:
            self.clear()
        self._shown = text
        line = f"{text}: {'  '.join([f'{100 * fraction:.0f} %', *details])}"
        bar = f'<progress max="1" value="{fraction:.3f}"></progress> {html.escape(line)}'
        content = {"text/plain": line, "text/html": bar}
        if self._handle is None:
            self._handle = import_module("IPython.display").display(content, raw=True, display_id=True)
        else:
            self._handle.update(content, raw=True)

    def clear(self) -> None:
        """Leave the progress bar as it is; what is shown next comes below it."""
        self._handle = None
