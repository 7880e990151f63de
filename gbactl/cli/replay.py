"""`gbactl replay`: execute a run's steps again from its event log, to the last bit."""

from __future__ import annotations

from pathlib import Path

import click


@click.command("replay", context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("run", metavar="RUN")
@click.option("--until", type=int, metavar="STEP", help="Stop when so many steps are applied, and keep the model.")
@click.option(
    "--keep",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="PATH",
    help="Where to keep the model, as .npz (default with --until: RUN/replay-STEP.npz).",
)
@click.option("--json", "as_json", is_flag=True, help="Print the verdict as JSON.")
@click.option("--uri", metavar="URI", help="The tracking store (default: MLFLOW_TRACKING_URI, ./mlflow.db).")
def command(run: str, until: int | None, keep: Path | None, as_json: bool, uri: str | None) -> None:
    """Execute a run again from its event log and compare, to the last bit.

    RUN is a run directory, an MLflow run id, or the beginning of either's name. The log says which worker pulled
    which version of which server and what was announced; the policy must make the same decisions again, and
    every checksum in the log must match. A run whose trainers have replicas cannot be replayed; one of mode=sync can
    where its gradients were summed in a known order: with collective=shm, two workers, or cluster=virtual.

    \b
    gbactl replay runs/20260101-120000-gba-s0-1a2b3c
    gbactl replay 4f1c                          the beginning of a run id
    gbactl replay RUN --until 500               the model after 500 steps
    gbactl replay RUN --until 500 --keep m.npz  numpy.load reads it

    Exit code 1 and the first difference, with step, workers and batches, where the run is not reproduced.
    Checksums are in the log every train.checksum_every steps and at the end of each phase.
    """
    from gbactl.replay.replay_run import run_and_show

    run_and_show(run, until, keep, uri, as_json)
