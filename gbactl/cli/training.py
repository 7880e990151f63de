"""Verbs that train or act on a running job: `gbactl train`, `switch` and `top`."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import click

from gbactl.cli.config_and_completion import OverridesCommand, complete_overrides, uri_option
from gbactl.errors import UsageError

NO_NODES = ("--cfg", "--info", "-i")  # options with which no process is started


@click.command(
    "train",
    cls=OverridesCommand,
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
)
@click.argument("overrides", nargs=-1, type=click.UNPROCESSED, shell_complete=complete_overrides)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.option("--trace", is_flag=True, help="Write trace.json, a timeline of 200 steps for ui.perfetto.dev.")
@click.option("--submit", is_flag=True, help="With cluster=slurm: submit the run as a batch job, and follow it.")
@click.option("--cfg", "-c", metavar="job", help="Print the keys that have an effect, and train nothing.")
def train(overrides: tuple[str, ...], as_json: bool, trace: bool, submit: bool, cfg: str | None) -> None:
    """Train a click model; OVERRIDES are Hydra's: GROUP=OPTION or KEY=VALUE.

    \b
    gbactl train experiment=smoke mode=gba              a first run
    gbactl train -m mode=sync,async,gba seed=1,2,3      every combination
    gbactl train resume=RUN mode=async                  continue a run
    gbactl train mode=gba --cfg job                     its keys, no training
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
    """Return whether overrides select real processes, as by default; False if their engine is not one known name."""
    chosen = [text.partition("=")[2] for text in overrides if text.startswith("cluster=")]
    if not chosen:
        return True
    from gbactl.config.engine_interface import engine_named
    from gbactl.errors import ConfigError

    try:
        return engine_named(chosen[-1]).real
    except ConfigError:  # several names, as in a sweep, or an unknown one, which composing reports
        return False


@click.command(
    "switch",
    context_settings={"ignore_unknown_options": True},
)
@click.option(
    "--run", metavar="RUN", help="A running job: its directory, its MLflow run id, or the beginning of one of the two."
)
@click.option("--to", metavar="MODE", help="The mode to switch to.")
@click.option(
    "--set", "changes", metavar="KEY=VALUE", multiple=True, help="Change a key of conf/mode/MODE.yaml. May be repeated."
)
@click.option("--wait", is_flag=True, help="Return when the first gradient in the new mode has been computed.")
@click.option("--status", is_flag=True, help="Print mode, step, rates, staleness and workers of the running job.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@uri_option
@click.argument("overrides", nargs=-1, type=click.UNPROCESSED, shell_complete=complete_overrides)
def switch(
    run: str | None, to: str | None, changes: tuple[str, ...], wait: bool, status: bool, as_json: bool,
    uri: str | None, overrides: tuple[str, ...],
) -> None:  # fmt: skip
    """Change the training mode of a job, in either direction, without tuning and without a restart.

    \b
    By a schedule; OVERRIDES are those of gbactl train:
      gbactl switch mode=sync switch.schedule='[{at: {day: 1}, to: gba}]'
      gbactl switch switch.schedule='[{at: {samples: 3e6}, to: gba,
        set: {iota: 4}}, {at: {fraction: 0.8}, to: sync}]'
    Points: day epoch samples step seconds fraction; `set` changes keys of
    conf/mode/MODE.yaml, and how many workers train; fresh_optimizer: true
    begins the optimizer's state anew.
      gbactl switch mode=sync switch=auto            chooses sync or gba by itself

    \b
    While it runs:
      gbactl switch --run 4f1c --to gba --wait       the beginning of a run id
      gbactl switch --run runs/DIR --to gba --set iota=4
      gbactl switch --run 4f1c --status

    Gradients in flight arrive, the dense parameters move, and the rest of the day goes on in the new mode with the
    same processes, optimizer state, step and learning rate. To ask for sync later, start with switch.prepare=all.
    """
    from gbactl.launch.control_socket import ask, tell_status

    if run is None:
        if to or changes or wait or status:
            raise UsageError("--to, --set, --wait and --status need --run RUN.")
        from gbactl.launch.training_run import train_switching

        train_switching(list(overrides), as_json)
    elif overrides:
        raise UsageError(f"A running job takes no overrides ({overrides[0]}); type --to MODE --set KEY=VALUE.")
    elif status:
        tell_status(run, as_json, uri)
    elif to is None:
        raise UsageError("Type --to MODE, or --status.")
    else:
        ask(run, to, changes, wait, as_json, uri)


@click.command("top")
@uri_option
@click.argument("run", required=False, metavar="[RUN]")
def top(run: str | None, uri: str | None) -> None:
    """Watch a running job: rates, slow workers, staleness, switches, failures.

    RUN is its directory, its MLflow run id, or how either begins; without it,
    the only job that runs below runs/. On a terminal the key s switches the
    mode, and q leaves the job alone and quits. On a pipe: one line a second.

    \b
    gbactl top
    gbactl top runs/demo | tee rates.txt
    """
    from gbactl.launch.live_view import watch

    watch(run, uri)
