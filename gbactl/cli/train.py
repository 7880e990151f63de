"""`gbactl train`: Hydra overrides in, one run (or a sweep) out."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import click

from gbactl.cli.overrides import OverridesCommand, complete_overrides

NO_NODES = ("--cfg", "--info", "-i")  # options with which no process is started


@click.command(
    "train",
    cls=OverridesCommand,
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": ["-h", "--help"]},
)
@click.argument("overrides", nargs=-1, type=click.UNPROCESSED, shell_complete=complete_overrides)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.option("--trace", is_flag=True, help="Write trace.json, of 200 steps, for ui.perfetto.dev.")
@click.option("--submit", is_flag=True, help="With cluster=slurm: submit the run as a batch job, and follow it.")
@click.option("--cfg", "-c", metavar="job", help="Print the keys that act, and run nothing.")
def command(overrides: tuple[str, ...], as_json: bool, trace: bool, submit: bool, cfg: str | None) -> None:
    """Train a click model; OVERRIDES are Hydra's: GROUP=OPTION or KEY=VALUE.

    \b
    gbactl train experiment=smoke mode=gba              a first run
    gbactl train -m mode=sync,async,gba seed=1,2,3      every combination
    gbactl train resume=RUN mode=async                  go on with a run
    gbactl train mode=gba --cfg job                     its keys, not run
    """
    if cfg == "job" and not any(text.startswith("-") for text in overrides):
        from gbactl.launch.config_command import filled_in

        click.echo(filled_in(list(overrides)), nl=False)
        return
    if cfg is not None:
        overrides = ("--cfg", cfg, *overrides)
    from gbactl.launch import slurm_job

    if submit:
        slurm_job.submit(overrides, ["--json"] * as_json + ["--trace"] * trace)
        return
    with slurm_job.requeued(list(overrides)) as given:
        _train(given, as_json, trace)


def _train(overrides: list[str], as_json: bool, trace: bool) -> None:
    from gbactl.engine.fork_server import open_fork_server

    if not any(text.startswith(NO_NODES) for text in overrides) and _real(overrides):
        open_fork_server()  # the fork server imports torch while this process composes the configuration
    from gbactl.launch.hydra_config import run_hydra
    from gbactl.launch.training_run import train

    run_hydra(overrides, functools.partial(train, as_json=as_json, trace=trace), as_json=as_json)


def _real(overrides: Sequence[str]) -> bool:
    """Return whether the typed overrides select real processes, as far as they tell."""
    chosen = [text.partition("=")[2] for text in overrides if text.startswith("cluster=")]
    if not chosen:
        return True
    from gbactl.config.engine_interface import engine_named
    from gbactl.errors import ConfigError

    try:
        return engine_named(chosen[-1]).real
    except ConfigError:  # several names, as in a sweep, or an unknown one, which composing reports
        return False
