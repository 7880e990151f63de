"""Progress on stderr: a bar on a terminal, one line a stage elsewhere. Costs at most ten updates a second."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from gbactl.data.files import Progress as Callback


def _lines(console: Console) -> Callback:
    seen = set[str]()

    def tell(stage: str, fraction: float) -> None:
        if stage not in seen:
            seen.add(stage)
            console.print(f"data: {stage}", highlight=False, soft_wrap=True)

    return tell


@contextlib.contextmanager
def shown(console: Console | None = None) -> Iterator[Callback]:
    """A callback for `prepare` that shows (stage, fraction)."""
    console = console or Console(stderr=True)
    if not console.is_terminal:
        yield _lines(console)
        return
    columns = TextColumn("{task.description}"), BarColumn(30), TaskProgressColumn(), TimeElapsedColumn()
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("data", total=1.0)
        yield lambda stage, fraction: bar.update(task, description=f"data: {stage}", completed=fraction)
