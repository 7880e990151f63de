"""`gbactl ui`: open the MLflow UI on the store that contains the runs."""

from __future__ import annotations

import click


@click.command("ui", context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--port", default=5000, show_default=True, type=click.IntRange(1, 65535))
@click.option("--uri", metavar="URI", help="The tracking store (default: MLFLOW_TRACKING_URI, ./mlflow.db).")
def command(port: int, uri: str | None) -> None:
    """Open the MLflow UI on this machine's loopback address until Ctrl-C."""
    from gbactl.launch.run_dir import end_orphans
    from gbactl.tracking.mlflow_connection import tracking_uri
    from gbactl.tracking.mlflow_ui import serve

    end_orphans(tracking_uri(uri=uri))
    serve(uri, port, click.echo)
