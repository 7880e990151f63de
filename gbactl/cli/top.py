"""`gbactl top`: watch a running job."""

from __future__ import annotations

import click


@click.command("top", context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--uri", metavar="URI", help="The tracking store (default: MLFLOW_TRACKING_URI, ./mlflow.db).")
@click.argument("run", required=False, metavar="[RUN]")
def command(run: str | None, uri: str | None) -> None:
    """Watch a running job: rates, who is slow, staleness, switches, failures.

    RUN is its directory, its MLflow run id, or how either begins; without it,
    the only job that runs below runs/. On a terminal the key s switches the
    mode, and q leaves the job alone and quits. On a pipe: one line a second.

    \b
    gbactl top
    gbactl top runs/demo | tee rates.txt
    """
    from gbactl.launch.live_view import watch

    watch(run, uri)
