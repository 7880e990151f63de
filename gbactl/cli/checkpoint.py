"""`gbactl checkpoint`: what a run has saved: list it, check it, take the model out of it."""

from __future__ import annotations

from pathlib import Path

import click


@click.group("checkpoint", context_settings={"help_option_names": ["-h", "--help"]})
def command() -> None:
    """List, verify and export the checkpoints of a run.

    RUN is a run directory, an MLflow run id, or the beginning of either's name; or the folder of one checkpoint.

    \b
    gbactl train checkpoint=cpr_ssu checkpoint.interval_seconds=600     save
    gbactl checkpoint ls RUN                                            what there is
    gbactl checkpoint verify RUN                                        is it good, to the last bit
    gbactl checkpoint export RUN --out model                            for other programs
    gbactl train resume=RUN                                             go on from it
    """


@command.command("ls")
@click.argument("run")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, one object a checkpoint.")
def ls(run: str, as_json: bool) -> None:
    """List a run's checkpoints, oldest first; only their manifests are read."""
    from gbactl.launch.checkpoint_command import show_list

    show_list(run, as_json)


@command.command("verify")
@click.argument("run")
def verify(run: str) -> None:
    """Read every byte of every checkpoint and compare checksums. Exit code 1, with its name, if one is damaged."""
    from gbactl.launch.checkpoint_command import verify_all

    verify_all(run)


@command.command("export")
@click.argument("run")
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), help="A folder (default: RUN/export).")
def export(run: str, out: Path | None) -> None:
    """Write the model of the newest good checkpoint, for any number of servers.

    \b
    model.safetensors  rows of all tables, dense vector, optimizer state
    model.pt           a state dict: torch.load(path, weights_only=True)
    model.json         what is in them, and the configuration
    """
    from gbactl.launch.checkpoint_command import export_newest

    export_newest(run, out)
