"""What the bench prints and writes: one table, results.json, results.md."""

from __future__ import annotations

import json
import os
import platform
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lines import Line
from rich.console import Console
from rich.table import Table

COLUMNS = ("line", "what", "measured", "min - max", "target", "", "figures")


def machine() -> dict[str, Any]:
    """Where this was measured."""
    import importlib.metadata

    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    cpu = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "")
    return {
        "cpu": cpu, "cores": len(os.sched_getaffinity(0)), "python": platform.python_version(),
        "torch": importlib.metadata.version("torch"),
    }  # fmt: skip


def cells(line: Line) -> tuple[str, ...]:
    """A line as text."""
    unit, digits = (" %", 2) if line.percent else ("", 3 if line.median < 10 else 1)
    low, high = (f"{v:.{digits}f}" for v in (min(line.values), max(line.values)))
    span = f"{low} - {high}" if len(line.values) > 1 else ""
    sign = ">=" if line.at_least else "<="
    target = "" if line.target is None else f"{sign} {line.target:g}{unit}"
    verdict = {None: "", True: "met", False: "missed"}[line.met]
    return line.name, line.what, f"{line.median:.{digits}f}{unit}", span, target, verdict, line.note


def show(found: list[Line]) -> None:
    """The table, for people."""
    table = Table(title="gbactl bench: medians of alternating rounds", title_justify="left")
    for number, name in enumerate(COLUMNS):
        table.add_column(name, justify="right" if number in (2, 3, 4) else "left", overflow="fold")
    for line in found:
        name, what, *rest = cells(line)
        style = {None: "", True: "green", False: "bold red"}[line.met]
        table.add_row(name, what, *rest[:3], f"[{style}]{rest[3]}[/]" if style else rest[3], rest[4])
    Console(width=None if os.isatty(1) else 180).print(table)


def write(folder: Path, found: list[Line], settings: dict[str, Any]) -> None:
    """results.json and results.md."""
    folder.mkdir(parents=True, exist_ok=True)
    here = machine()
    lines = [{**asdict(line), "median": line.median, "met": line.met} for line in found]
    text = json.dumps({"machine": here, "settings": settings, "lines": lines}, indent=2)
    (folder / "results.json").write_text(text + "\n")
    rows = [COLUMNS, ("---",) * len(COLUMNS), *(cells(line) for line in found)]
    body = "\n".join("| " + " | ".join(row) + " |" for row in rows)
    head = (
        f"Measured on {here['cpu'] or platform.machine()}, {here['cores']} cores, torch {here['torch']}; "
        f"medians of {settings['rounds']} alternating rounds; "
        f"load {settings['load_before']:.1f} before."
    )
    (folder / "results.md").write_text(f"{head}\n\n{body}\n")
