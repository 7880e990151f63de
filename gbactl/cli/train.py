"""`gbactl train`: Hydra overrides in, one run (or a sweep) out."""

from __future__ import annotations

import functools

import click

NO_NODES = ("--cfg", "-c", "--info", "-i")  # options with which no process is started


@click.command(
    "train",
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": ["-h", "--help"]},
)
@click.argument("overrides", nargs=-1, type=click.UNPROCESSED)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(overrides: tuple[str, ...], as_json: bool) -> None:
    """Train a click model; OVERRIDES are Hydra's (key=value, group=option).

    \b
    gbactl train experiment=smoke mode=gba
    gbactl train mode=gba data=criteo data.path=day_0.gz cluster.workers=4 seed=3
    gbactl train -m mode=sync,async,gba seed=1,2,3      every combination
    gbactl train -m hydra/sweeper=optuna 'optim.lr=interval(0.001, 0.1)'    tune (extra optuna)
    gbactl train checkpoint=cpr_ssu                     save while training goes on
    gbactl train resume=RUN mode=async                  go on with a run that ended early
    gbactl train --cfg job                              the configuration, not run
    gbactl train --info                                 Hydra's own information

    \b
    Groups: mode data model optim cluster collective checkpoint tracking experiment
    Keys:   train.global_batch  mode.local_batch  cluster.workers
            cluster.servers  seed  precision  run_dir  resume  (all: --cfg job)
    """
    from gbactl.engine.fork_server import open_fork_server

    if not any(text.startswith(NO_NODES) for text in overrides) and _real(overrides):
        open_fork_server()  # the fork server imports torch while this process composes the configuration
    from gbactl.launch.hydra_config import run_hydra
    from gbactl.launch.training_run import train

    run_hydra(list(overrides), functools.partial(train, as_json=as_json), as_json=as_json)


def _real(overrides: tuple[str, ...]) -> bool:
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
