"""`gbactl switch`: change the mode of a training, by a schedule or while it runs."""

from __future__ import annotations

import click

from gbactl.cli.overrides import complete_overrides
from gbactl.errors import UsageError


@click.command(
    "switch",
    context_settings={"ignore_unknown_options": True, "help_option_names": ["-h", "--help"]},
)
@click.option("--run", metavar="RUN", help="A running job: its directory, its MLflow run id, or how either begins.")
@click.option("--to", metavar="MODE", help="The mode to switch to.")
@click.option("--set", "changes", metavar="KEY=VALUE", multiple=True, help="Changes a key of conf/mode/MODE.yaml.")
@click.option("--wait", is_flag=True, help="Return once the first gradient in the new mode was computed.")
@click.option("--status", is_flag=True, help="Mode, step, rates, staleness and workers of the running job.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--uri", metavar="URI", help="The tracking store (default: MLFLOW_TRACKING_URI, ./mlflow.db).")
@click.argument("overrides", nargs=-1, type=click.UNPROCESSED, shell_complete=complete_overrides)
def command(
    run: str | None, to: str | None, changes: tuple[str, ...], wait: bool, status: bool, as_json: bool,
    uri: str | None, overrides: tuple[str, ...],
) -> None:  # fmt: skip
    """Change the training mode of a job, in either direction, without tuning and without a restart.

    \b
    By a schedule; OVERRIDES are those of gbactl train:
      gbactl switch mode=sync switch.schedule='[{at: {day: 1}, to: gba}]'
      gbactl switch switch.schedule='[{at: {samples: 3e6}, to: gba, set: {iota: 4}},
                                      {at: {fraction: 0.8}, to: sync}]'
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
