"""`gbactl data prepare | describe`: the data sets, apart from any training."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from gbactl.cli.overrides import complete_overrides

if TYPE_CHECKING:
    from gbactl.data.dataset import Dataset


@click.group("data")
def command() -> None:
    """Prepare and describe data sets (overrides as for `train`: data=criteo data.path=FILE)."""


@command.command("prepare")
@click.argument("overrides", nargs=-1, shell_complete=complete_overrides)
def prepare(overrides: tuple[str, ...]) -> None:
    """Read or generate the data once, and store them in the cache."""
    from gbactl.data.data_summary import show

    show(_prepared(overrides), fields=False)


@command.command("describe")
@click.argument("overrides", nargs=-1, shell_complete=complete_overrides)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def describe(overrides: tuple[str, ...], as_json: bool) -> None:
    """Print rows, days, click rate (CTR), and fields with cardinalities and skew."""
    from gbactl.data.data_summary import show, summarise

    dataset = _prepared(overrides)
    if as_json:
        click.echo(json.dumps(summarise(dataset), indent=1))
    else:
        show(dataset, fields=True)


def _prepared(overrides: tuple[str, ...]) -> Dataset:
    """Build or reuse the cache of the data that the overrides select; shows its progress on standard error."""
    from gbactl.data.dataset import open_dataset
    from gbactl.data.source_cache import prepare
    from gbactl.launch.hydra_config import compose
    from gbactl.launch.progress import ProgressDisplay

    display = ProgressDisplay()
    try:
        return open_dataset(prepare(compose(list(overrides)).data, display.step))
    finally:
        display.clear()
