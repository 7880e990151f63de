"""Output of the benchmark: one table, results.json, results.md."""

from __future__ import annotations

import json
import os
import platform
import shlex
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from bench_lines import Line
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parents[2]
NAMED = ("python", "torch", "horovod", "gbactl")
COLUMNS = ("line", "what", "measured", "min - max", "target", "", "figures")


def machine() -> dict[str, Any]:
    """Description of this machine, with library versions."""
    from gbactl.cpu import model, widest
    from gbactl.tracking.metrics_and_tags import versions

    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    vectors = f" ({widest()})" if widest() else ""
    return {
        "cpu": f"{model() or platform.machine()}{vectors}", "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(memory, 1),
        "system": f"{platform.system()} {platform.release()}", "versions": versions(),
    }  # fmt: skip


def command_line(arguments: Sequence[str]) -> str:
    """Command line of this run, as typed in a checkout."""
    script, *rest = arguments
    path = Path(script).resolve()
    shown = path.relative_to(ROOT) if path.is_relative_to(ROOT) else Path(path.name)
    return shlex.join([".venv/bin/python", str(shown), *rest])


def cells(line: Line) -> tuple[str, ...]:
    """Format a line as cells of text."""
    unit, digits = (" %", 2) if line.percent else ("", 3 if line.median < 10 else 1)
    low, high = (f"{v:.{digits}f}" for v in (min(line.values), max(line.values)))
    span = f"{low} - {high}" if len(line.values) > 1 else ""
    sign = ">=" if line.at_least else "<="
    target = "" if line.target is None else f"{sign} {line.target:g}{unit}"
    verdict = {None: "", True: "met", False: "missed"}[line.met]
    return line.name, line.what, f"{line.median:.{digits}f}{unit}", span, target, verdict, line.note


def show(found: list[Line]) -> None:
    """Print the table."""
    table = Table(title="gbactl bench: medians of alternating rounds", title_justify="left")
    for number, name in enumerate(COLUMNS):
        table.add_column(name, justify="right" if number in (2, 3, 4) else "left", overflow="fold")
    for line in found:
        name, what, *rest = cells(line)
        style = {None: "", True: "green", False: "bold red"}[line.met]
        table.add_row(name, what, *rest[:3], f"[{style}]{rest[3]}[/]" if style else rest[3], rest[4])
    Console(width=None if os.isatty(1) else 180).print(table)


def write(folder: Path, found: list[Line], settings: dict[str, Any], failed: dict[str, str]) -> None:
    """Write results.json and results.md.

    `settings`: the command, rounds and load. `failed`: jobs that were not measured. Lines that an earlier command
    measured on this machine with these versions, and this one did not, stay.
    """
    folder.mkdir(parents=True, exist_ok=True)
    here, new = machine(), {line.name for line in found} | set(failed)
    stay = [] if settings["quick"] else [line for line in before(folder, here) if line.name not in new]
    found = [*stay, *found]
    lines = [{**asdict(line), "median": line.median, "met": line.met} for line in found]
    all_of_it = {"machine": here, "settings": settings, "lines": lines, "failed": failed}
    (folder / "results.json").write_text(json.dumps(all_of_it, indent=2) + "\n")
    (folder / "results.md").write_text(text(found, settings, failed, here))


def before(folder: Path, here: dict[str, Any]) -> list[Line]:
    """Read the lines of results.json, if it is of this machine and these versions and no quick run."""
    path = folder / "results.json"
    if not path.exists():
        return []
    there = json.loads(path.read_text())
    if there["machine"] != json.loads(json.dumps(here)) or there["settings"]["quick"]:
        return []
    names = [each.name for each in fields(Line)]
    return [Line(**{name: line[name] for name in names}) for line in there["lines"]]


def text(found: list[Line], settings: dict[str, Any], failed: dict[str, str], here: dict[str, Any]) -> str:
    """Text of results.md."""
    versions = ", ".join(f"{name} {here['versions'].get(name, 'none')}" for name in NAMED)
    judged = [line.met for line in found if line.met is not None]
    rows = [COLUMNS, ("---",) * len(COLUMNS), *(cells(line) for line in found)]
    body = ["| " + " | ".join(row) + " |" for row in rows]
    missing = [f"Not measured: `{name}`: {why}" for name, why in failed.items()]
    quick = " This was `--quick`: it shows that everything runs, its figures mean nothing." * bool(settings["quick"])
    head = [
        "# Results", "", f"Last written by `{settings['command']}`, which keeps the lines that it did not measure.", "",
        f"Machine: {here['cpu']}, {here['cores']} cores, {here['memory_gib']} GiB, {here['system']}; "
        f"load {settings['load_before']:.1f} before. Versions: {versions}.", "",
        f"Each figure is the median of alternating rounds, with their range; a run trains {settings['rows']:,} "
        f"samples. {sum(judged)} of {len(judged)} targets are met.{quick}", "",
    ]  # fmt: skip
    return "\n".join([*head, *body, *([""] * bool(missing)), *missing]) + "\n"
