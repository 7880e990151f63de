"""`gbactl advise`: which mode to run in, from simulations of the user's cluster, load and data."""

from __future__ import annotations

import click

from gbactl.cli.overrides import complete_overrides


@click.command("advise", context_settings={"ignore_unknown_options": True, "help_option_names": ["-h", "--help"]})
@click.argument("overrides", nargs=-1, type=click.UNPROCESSED, shell_complete=complete_overrides)
@click.option("--modes", metavar="NAME,...", help="Modes beside sync [default: all without replicas].")
@click.option("--minutes", type=click.FloatRange(0.25), default=3.0, show_default=True, help="How long it may take.")
@click.option(
    "--seeds", type=click.IntRange(1), metavar="N", help="Seeds of all modes [default: 3, more of those that matter]."
)
@click.option(
    "--samples", type=click.IntRange(1), metavar="N", help="Samples in each mode [default: as the time allows]."
)
@click.option(
    "--margin", type=click.FloatRange(min=0, min_open=True), metavar="NUMBER",
    help="Largest difference in AUC to sync that counts as none [default: .0005].",
)  # fmt: skip
@click.option("--jobs", type=click.IntRange(1), metavar="N", help="Simulations at a time [default: as many as cores].")
@click.option(
    "--format", "form", default="table", show_default=True, type=click.Choice(["table", "md", "json"]),
)  # fmt: skip
def command(
    overrides: tuple[str, ...], modes: str | None, minutes: float, seeds: int | None, samples: int | None,
    margin: float | None, jobs: int | None, form: str,
) -> None:  # fmt: skip
    """Simulate the modes on your cluster, load and data, and say which one to run in.

    \b
    gbactl calibrate --out mine.yaml            measure this machine first
    gbactl advise cost=mine.yaml cluster.workers=4 faults=one_slow
    gbactl advise cost=mine.yaml data=criteo data.path=day_0.gz model.dim=32
    gbactl advise --modes gba,shadow_ma --format json

    OVERRIDES are those of gbactl train. Each seed trains a base in sync, and goes on from it in each mode, on a sample
    of the data, with real gradients in modelled time. The table has predicted samples per second (EPS), the
    difference in AUC to sync, and the time until sync's AUC. Keys mode.* hold for mode= alone.

    \b
    The mode that is named is the fastest whose AUC is shown to be the same as
    sync's within the margin, or better. A better AUC of a mode that takes more
    steps than sync does not count. Within 5 % of the fastest sync is named,
    else the mode whose AUC is best shown.

    Logged to MLflow's experiment advise, with the simulations as child runs.
    """
    from gbactl.advise.advise_command import AdviseOptions, advise

    advise(overrides, AdviseOptions(modes, minutes, seeds, samples, margin, jobs, form), click.echo)
