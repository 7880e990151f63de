"""Implementation of `gbactl data`: compose the configuration, prepare its data, print.

Progress goes to stderr: a bar on a terminal, one line a stage elsewhere; at most ten updates a second.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from gbactl.data.data_summary import show, summarise
from gbactl.data.dataset import Dataset, open_dataset
from gbactl.data.dataset import Progress as Callback
from gbactl.data.source_cache import prepare
from gbactl.launch.hydra_config import compose


def _prepared(overrides: list[str]) -> Dataset:
    with shown() as progress:
        return open_dataset(prepare(compose(overrides).data, progress))


def run_prepare(overrides: list[str]) -> None:
    """Build or reuse the cache of the data that the overrides select, and print its days."""
    show(_prepared(overrides), fields=False)


def run_describe(overrides: list[str], as_json: bool) -> None:
    """Prepare the data that the overrides select, then print their days and fields."""
    dataset = _prepared(overrides)
    if as_json:
        print(json.dumps(summarise(dataset), indent=1))
        return
    show(dataset, fields=True)


def _lines(console: Console) -> Callback:
    seen = set[str]()

    def tell(stage: str, fraction: float) -> None:
        if stage not in seen:
            seen.add(stage)
            console.print(f"data: {stage}", highlight=False, soft_wrap=True)

    return tell


@contextlib.contextmanager
def shown(console: Console | None = None) -> Iterator[Callback]:
    """Show a progress bar inside this context; yields the callback to which `prepare` reports (stage, fraction)."""
    console = console or Console(stderr=True)
    if not console.is_terminal:
        yield _lines(console)
        return
    columns = TextColumn("{task.description}"), BarColumn(30), TaskProgressColumn(), TimeElapsedColumn()
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("data", total=1.0)
        yield lambda stage, fraction: bar.update(task, description=f"data: {stage}", completed=fraction)
