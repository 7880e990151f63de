"""Commands that train or act on a running job: `gbactl train`, `switch` and `top`."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import click

from gbactl.cli.config_and_completion import (
    WITH_OVERRIDES,
    OverridesCommand,
    json_option,
    overrides_argument,
    uri_option,
)
from gbactl.errors import UsageError

NO_NODES = ("--cfg", "--info", "-i")  # options with which no process is started


cfg_option = click.option(
    "--cfg", "-c", metavar="job", help="Print the keys that have an effect in the run, and train nothing."
)


def _printed_keys(overrides: tuple[str, ...]) -> bool:
    """Print the keys of a run and return True, if `--cfg job` is the only option but CONFIG_DIR; others are Hydra's."""
    if overrides[:2] != ("--cfg", "job"):
        return False
    from gbactl.launch.config_command import filled_in
    from gbactl.launch.hydra_config import CONFIG_DIR

    if any(text.startswith("-") and text.partition("=")[0] not in CONFIG_DIR for text in overrides[2:]):
        return False
    click.echo(filled_in(list(overrides[2:])), nl=False)
    return True


@click.command("train", cls=OverridesCommand, context_settings=WITH_OVERRIDES)
@overrides_argument
@json_option(help="Print the result as JSON.")
@click.option("--trace", is_flag=True, help="Write trace.json, a timeline of 200 steps for ui.perfetto.dev.")
@click.option("--submit", is_flag=True, help="With cluster=slurm: submit the run as a batch job and follow its output.")
@cfg_option
def train(overrides: tuple[str, ...], as_json: bool, trace: bool, submit: bool, cfg: str | None) -> None:
    """Train a click model. OVERRIDES are those of Hydra: GROUP=OPTION or KEY=VALUE.

    \b
    gbactl train experiment=smoke mode=gba              a first run
    gbactl train -m mode=sync,async,gba seed=1,2,3      every combination
    gbactl train resume=RUN mode=async                  continue a run
    gbactl train mode=gba --cfg job                     print keys, no training
    """
    if cfg is not None:
        overrides = ("--cfg", cfg, *overrides)
    if _printed_keys(overrides):
        return
    from gbactl.launch import slurm_job

    options = ["--json"] * as_json + ["--trace"] * trace
    if submit:
        slurm_job.submit(overrides, options)
        return
    with slurm_job.requeued(list(overrides)) as given:
        _train(given, options)


def _train(overrides: list[str], options: list[str]) -> None:
    from gbactl.engine.fork_server import open_fork_server

    if not any(text.startswith(NO_NODES) for text in overrides) and _real(overrides):
        open_fork_server()  # the fork server imports torch while this process composes the configuration
    from gbactl.launch.hydra_config import run_hydra
    from gbactl.launch.training_run import train

    job = functools.partial(train, as_json="--json" in options, trace="--trace" in options)
    run_hydra(overrides, job, options=options)


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


@click.command("switch", context_settings=WITH_OVERRIDES)
@click.option(
    "--run", metavar="RUN", help="A running job: its directory, its MLflow run id, or the beginning of one of the two."
)
@click.option("--to", metavar="MODE", help="The mode to which the running job switches.")
@click.option(
    "--set", "changes", metavar="KEY=VALUE", multiple=True, help="Change a key of the new mode. May be repeated."
)
@click.option("--wait", is_flag=True, help="Return when the first gradient in the new mode has been computed.")
@click.option("--status", is_flag=True, help="Print mode, step, samples per second, staleness and workers of the job.")
@json_option(help="Print JSON.")
@cfg_option
@uri_option
@overrides_argument
def switch(
    run: str | None, to: str | None, changes: tuple[str, ...], wait: bool, status: bool, as_json: bool,
    cfg: str | None, uri: str | None, overrides: tuple[str, ...],
) -> None:  # fmt: skip
    """Change the training mode of a job, in either direction, without tuning and without a restart.

    \b
    By a schedule; OVERRIDES are those of gbactl train:
      gbactl switch mode=sync switch.schedule='[{at: {day: 1}, to: gba}]'
      gbactl switch switch.schedule='[{at: {samples: 3e6}, to: gba,
        set: {iota: 4}}, {at: {fraction: 0.8}, to: sync}]'
    The point of a switch is a day, epoch, samples, step, seconds or fraction.
    `set` changes keys of the new mode, or the number of workers that train.
    `fresh_optimizer: true` resets the optimizer's state.
      gbactl switch mode=sync switch=auto            gbactl chooses sync or gba

    \b
    While it runs:
      gbactl switch --run 4f1c --to gba --wait       the beginning of a run id
      gbactl switch --run runs/DIR --to gba --set iota=4
      gbactl switch --run 4f1c --status

    At a switch the gradients in flight arrive, the dense parameters move to where the new mode keeps them, and the
    rest of the day is trained in the new mode with the same processes, optimizer state, step and learning rate.
    If the job is to switch to sync by a later command, start it with switch.prepare=all.
    """
    from gbactl.launch.control_socket import ask, tell_status

    if cfg is not None:
        overrides = ("--cfg", cfg, *overrides)
    if run is None:
        if to or changes or wait or status:
            raise UsageError("--to, --set, --wait and --status need --run RUN.")
        if _printed_keys(overrides):
            return
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
    """Show a running job: samples per second, slow workers, staleness, switches and failures.

    RUN is the job's run directory, its MLflow run id, or the beginning of one of the two. Without RUN, gbactl top shows
    the only job that runs below runs/. On a terminal the key s switches the job's mode, and the key q ends gbactl top
    while the job goes on. If its output is a pipe, gbactl top prints one line each second.

    \b
    gbactl top
    gbactl top runs/demo | tee rates.txt
    """
    from gbactl.launch.live_view import watch

    watch(run, uri)
