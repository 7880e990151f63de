"""`gbactl report`: runs side by side, from MLflow or by their directories."""

from __future__ import annotations

from pathlib import Path

import click


def _split(values: tuple[str, ...]) -> list[str]:
    return [part.strip() for value in values for part in value.split(",") if part.strip()]


@click.command("report", context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("runs", metavar="[RUN]...", nargs=-1)
@click.option("--experiment", multiple=True, default=["gbactl"], show_default=True, help="May be repeated.")
@click.option(
    "--where",
    multiple=True,
    metavar="KEY=VALUE",
    help="Only runs with this value, or one of VALUE,VALUE; or a filter in MLflow's syntax. May be repeated.",
)
@click.option("--last", type=click.IntRange(min=1), metavar="N", help="Only the N newest of these runs.")
@click.option(
    "--sweep", metavar="last|ID", help="Only the runs of the newest sweep, or of the one with this MLflow id."
)
@click.option(
    "--by",
    multiple=True,
    metavar="KEY,...",
    help="Parameters to group by, or tags (tags.NAME), with means over what else differs [default: mode, and all that "
    "differs beyond the seed]",
)
@click.option("--baseline", metavar="VALUE", help="What to compare with (default: sync, if there is one).")
@click.option("--on", metavar="METRIC", default="auc", show_default=True, help="What is compared with the baseline.")
@click.option(
    "--margin",
    type=click.FloatRange(min=0, min_open=True),
    metavar="NUMBER",
    help="Largest difference to the baseline that counts as none; of eps, a share such as .02 [default: .0005 of AUC]",
)
@click.option("--round", "of_round", metavar="ROUND", help='Columns of one day or epoch alone, for instance "day 2".')
@click.option(
    "--time-to-auc",
    metavar="AUC|baseline",
    help="Add the seconds and samples until this AUC, or the last one of the baseline's run with the same seed.",
)
@click.option("--metric", multiple=True, metavar="NAME,...", help="More columns, for instance wall_seconds.")
@click.option(
    "--format",
    "form",
    default="table",
    show_default=True,
    type=click.Choice(["table", "md", "csv", "tex", "html", "json"]),
)
@click.option("--plots", type=click.Path(path_type=Path, file_okay=False), metavar="DIR", help="Write figures to DIR.")
@click.option("--log", is_flag=True, help="Write the table to the experiment's note in MLflow, verdicts to its runs.")
@click.option("--uri", metavar="URI", help="The tracking store (default: MLFLOW_TRACKING_URI, ./mlflow.db).")
@click.option(
    "--send",
    "run_dir",
    type=click.Path(path_type=Path),
    metavar="RUN_DIR",
    help="Instead: send to MLflow what a run could not send while it ran.",
)
def command(
    runs: tuple[str, ...],
    experiment: tuple[str, ...],
    where: tuple[str, ...],
    last: int | None,
    sweep: str | None,
    by: tuple[str, ...],
    baseline: str | None,
    on: str,
    margin: float | None,
    of_round: str | None,
    time_to_auc: str | None,
    metric: tuple[str, ...],
    form: str,
    plots: Path | None,
    log: bool,
    uri: str | None,
    run_dir: Path | None,
) -> None:
    """Compare runs: mean and deviation over seeds, paired difference to a baseline.

    RUN is a run directory, an MLflow run id, or the beginning of either's name: the report is of these runs alone.

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
    from gbactl.launch.run_dir import RESULT, end_orphans, find
    from gbactl.report.command import ReportOptions, report, send

    if run_dir is not None:
        send(run_dir, uri, click.echo)
        return
    by_keys, metrics = _split(by) or None, _split(metric)
    named = tuple(find(each, uri, holding=RESULT).resolve() for each in runs)
    options = ReportOptions(
        uri, experiment, where, by_keys, baseline, metrics, on, form, plots, margin, of_round, time_to_auc, log, named,
        last, sweep,
    )  # fmt: skip
    report(options, click.echo, lambda line: click.echo(line, err=True), end_orphans)
