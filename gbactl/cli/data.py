"""`gbactl data prepare | describe`: the data sets, apart from any training."""

from __future__ import annotations

import click

from gbactl.cli.overrides import complete_overrides


@click.group("data")
def command() -> None:
    """Prepare and describe data sets (overrides as for `train`: data=criteo data.path=FILE)."""


@command.command("prepare")
@click.argument("overrides", nargs=-1, shell_complete=complete_overrides)
def prepare(overrides: tuple[str, ...]) -> None:
    """Read or generate the data once, and store them in the cache."""
    from gbactl.launch.data_command import run_prepare

    run_prepare(list(overrides))


@command.command("describe")
@click.argument("overrides", nargs=-1, shell_complete=complete_overrides)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def describe(overrides: tuple[str, ...], as_json: bool) -> None:
    """Print rows, days, click rate (CTR), and fields with cardinalities and skew."""
    from gbactl.launch.data_command import run_describe

    run_describe(list(overrides), as_json)
