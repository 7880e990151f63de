"""Commands for the results of runs: `gbactl report`, `replay`, `checkpoint` and `ui`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from gbactl.cli.config_and_completion import count_option, default_option, json_option, margin_option, uri_option


def _split(values: tuple[str, ...]) -> list[str]:
    return [part.strip() for value in values for part in value.split(",") if part.strip()]


@click.command("report")
@click.argument("runs", metavar="[RUN]...", nargs=-1)
@default_option(
    "--experiment",
    "experiments",
    multiple=True,
    default=["gbactl"],
    help="MLflow experiment whose runs are compared. May be repeated.",
)
@click.option(
    "--where",
    multiple=True,
    metavar="KEY=VALUE",
    help="Only runs with this value, or one of VALUE,VALUE; or a filter in MLflow's syntax. May be repeated.",
)
@count_option("--last", help="Only the N newest of the selected runs.")
@click.option(
    "--sweep", metavar="last|ID", help="Only the runs of the newest sweep (last), or of the sweep with this MLflow id."
)
@click.option(
    "--by",
    multiple=True,
    metavar="KEY,...",
    help="Parameters or tags (tags.NAME) by which runs are grouped, one line a group; means are over all else that "
    "differs [default: the mode, and all parameters that differ except the seed]",
)
@click.option(
    "--baseline", metavar="VALUE", help="Group with which the others are compared (default: sync, if there is one)."
)
@default_option("--on", metavar="METRIC", default="auc", help="Metric in which groups are compared.")
@margin_option(
    help="Largest difference from the baseline that counts as none; of eps a share (.02) [default: .0005 of AUC]"
)
@click.option("--round", metavar="ROUND", help='Only the metrics of one day or epoch, for instance "day 2".')
@click.option(
    "--time-to-auc",
    metavar="AUC|baseline",
    help="Add the seconds and samples until this AUC, or until the last AUC of the baseline's run of the same seed.",
)
@click.option(
    "--metric",
    "metrics",
    multiple=True,
    metavar="NAME,...",
    help="Metrics for further columns, for instance wall_seconds.",
)
@default_option("--format", "form", default="table", type=click.Choice(["table", "md", "csv", "tex", "html", "json"]))
@click.option("--plots", type=click.Path(path_type=Path, file_okay=False), metavar="DIR", help="Write figures to DIR.")
@click.option("--log", is_flag=True, help="Write the table to the MLflow experiment's note, and verdicts to its runs.")
@uri_option
@click.option(
    "--send",
    "run_dir",
    type=click.Path(path_type=Path),
    metavar="RUN_DIR",
    help="Print no report, but send to MLflow the figures that the run in RUN_DIR could not send while it ran.",
)
def report(
    runs: tuple[str, ...], by: tuple[str, ...], metrics: tuple[str, ...], uri: str | None, run_dir: Path | None,
    **others: Any,
) -> None:  # fmt: skip
    """Compare runs: means and standard deviations over seeds, and paired differences from a baseline.

    RUN is a run directory, an MLflow run id, or the beginning of one of the two. With RUN, the report has only the runs
    that are named.

    \b
    gbactl report
    gbactl report --sweep last --format html > report.html
    gbactl report RUN --format html > run.html
    gbactl report --where mode=sync,gba --where cluster.workers=8 --last 10
    gbactl report --where "metrics.auc > 0.7" --by mode,cluster.workers
    gbactl report --by tags.takes_over --on "auc/day 3"
    gbactl report --round "day 2"
    gbactl report --format md --plots plots/
    gbactl report --time-to-auc baseline --margin .001 --log
    gbactl report --send runs/RUN_DIR
    """
    from gbactl.atomic_files import RESULT
    from gbactl.launch.run_dir import end_orphans, find
    from gbactl.report.report_command import ReportOptions, report, send

    if run_dir is not None:
        send(run_dir, uri, click.echo)
        return
    named = tuple(find(each, uri, holding=RESULT).resolve() for each in runs)
    options = ReportOptions(runs=named, by=_split(by) or None, metrics=_split(metrics), uri=uri, **others)
    report(options, click.echo, lambda line: click.echo(line, err=True), end_orphans)


@click.command("replay")
@click.argument("run", metavar="RUN")
@click.option(
    "--until", type=int, metavar="STEP", help="Stop when STEP steps are applied, and write the model to a file."
)
@click.option(
    "--keep",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="PATH",
    help="File for the replayed model, as .npz (default with --until: RUN/replay-STEP.npz).",
)
@json_option(help="Print the verdict as JSON.")
@uri_option
def replay(run: str, until: int | None, keep: Path | None, as_json: bool, uri: str | None) -> None:
    """Execute a run again from its event log and compare, to the last bit.

    RUN is a run directory, an MLflow run id, or the beginning of one of the two. The event log says which worker pulled
    which version from which server, and which gradients were announced. The policy must make the same decisions again,
    and every checksum in the event log must match. A run in a mode with replicas cannot be replayed. A run in sync can
    be replayed if its gradients were summed in a known order: with collective=shm, two workers, or cluster=virtual.

    \b
    gbactl replay runs/20260101-120000-gba-s0-1a2b3c
    gbactl replay 4f1c                          the beginning of a run id
    gbactl replay RUN --until 500               the model after 500 steps
    gbactl replay RUN --until 500 --keep m.npz  numpy.load reads it

    If the replay differs from the run, gbactl replay prints the first difference with its step, workers and batches,
    and the exit code is 1. The event log has a checksum every train.checksum_every steps and at the end of each phase.
    """
    from gbactl.replay.replay_command import run_and_show

    run_and_show(run, until, keep, uri, as_json)


@click.group("checkpoint")
def checkpoint() -> None:
    """List, verify and export the checkpoints of a run.

    RUN is a run directory, an MLflow run id, or the beginning of one of the two, or the folder of one checkpoint.

    \b
    gbactl train checkpoint=cpr_ssu            save checkpoints
    gbactl checkpoint ls RUN                   list them
    gbactl checkpoint verify RUN               compare all checksums
    gbactl checkpoint export RUN --out model   write a model for other programs
    gbactl train resume=RUN                    continue the run
    """


@checkpoint.command("ls")
@click.argument("run")
@json_option(help="Print JSON, one object for each checkpoint.")
def ls(run: str, as_json: bool) -> None:
    """List the checkpoints of a run, oldest first. Only the manifests of the checkpoints are read."""
    from gbactl.launch.checkpoint_command import show_list

    show_list(run, as_json)


@checkpoint.command("verify")
@click.argument("run")
def verify(run: str) -> None:
    """Read every byte of every checkpoint and compare checksums. If one is damaged, print it; the exit code is 1."""
    from gbactl.launch.checkpoint_command import verify_all

    verify_all(run)


@checkpoint.command("export")
@click.argument("run")
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), help="Output folder (default: RUN/export).")
def export(run: str, out: Path | None) -> None:
    """Write the model of a run's newest good checkpoint to files. The run may have had any number of servers.

    \b
    model.safetensors  rows of all tables, dense vector, optimizer state
    model.pt           a state dict: torch.load(path, weights_only=True)
    model.json         description of the two files, and the configuration
    """
    from gbactl.launch.checkpoint_command import export_newest

    export_newest(run, out)


@click.command("ui")
@default_option("--port", default=5000, type=click.IntRange(1, 65535))
@uri_option
def ui(port: int, uri: str | None) -> None:
    """Open the MLflow UI on this machine's loopback address until Ctrl-C."""
    from gbactl.launch.run_dir import end_orphans
    from gbactl.tracking.mlflow_store import tracking_uri
    from gbactl.tracking.mlflow_ui import serve

    end_orphans(tracking_uri(uri=uri))
    serve(uri, port, click.echo)
