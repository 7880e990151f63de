"""The `gbactl` command: its subcommands are found by name and imported only when one is called."""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import sys

import click

from gbactl import __version__
from gbactl.errors import GbactlError, Stopped

#: command -> the module of gbactl.cli that defines it, and a line of help
VERBS = {
    "train": ("training", "train a click model on a cluster in one of the modes"),
    "switch": ("training", "change the mode of a training, by a schedule or while it runs"),
    "top": ("training", "watch a running job: rates, slow workers; switch its mode"),
    "advise": ("commands_before_training", "simulate the modes and say which one to run in"),
    "report": ("commands_after_training", "compare runs: means, deviations, paired differences"),
    "replay": ("commands_after_training", "execute a run again from its event log, bit for bit"),
    "checkpoint": ("commands_after_training", "list, check and export what a run has saved"),
    "calibrate": ("commands_before_training", "measure this machine, for a virtual cluster that is like it"),
    "data": ("commands_before_training", "prepare and describe data sets"),
    "config": ("config_and_completion", "explain a group or a key of the configuration"),
    "doctor": ("commands_before_training", "check whether this machine has what a run needs"),
    "ui": ("commands_after_training", "open the MLflow UI on the store of the runs"),
}


class LazyGroup(click.Group):
    """Command group that imports the module of a command when the command is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        module, _ = VERBS[cmd_name]
        command = getattr(importlib.import_module(f"gbactl.cli.{module}"), cmd_name)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command as click does; for an unknown one, name a similar command."""
        if args[0] not in VERBS:
            from gbactl.checked_dataclasses import did_you_mean

            if meant := did_you_mean(args[0], VERBS):
                ctx.fail(f"No such command '{args[0]}'. {meant}")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> object:
        from gbactl.configured_classes import own_code_told

        with own_code_told():
            return super().invoke(ctx)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(verb, line) for verb, (_, line) in VERBS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, "--version", prog_name="gbactl")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
def cli(debug: bool) -> None:
    """Which distributed training mode should this model run in, on this cluster?

    \b
    First steps:
      gbactl doctor                               what this machine can do
      gbactl train experiment=smoke mode=gba      a first run, 8 seconds
      gbactl report                               compare what has been run
    """
    if debug:
        os.environ["GBACTL_DEBUG"] = "1"


def main() -> None:
    """Run the command line; print a GbactlError as one sentence, and exit with the error's exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal that cannot show a character shows a "?" instead
            stream.reconfigure(errors="replace")
    try:
        sys.exit(cli.main(prog_name="gbactl", standalone_mode=False) or 0)
    except (click.exceptions.Abort, KeyboardInterrupt):
        click.echo("gbactl: stopped.", err=True)
        sys.exit(130)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except GbactlError as error:
        if os.environ.get("GBACTL_DEBUG"):
            raise
        click.echo(f"gbactl: {error}", err=True)
        sys.exit(error.exit_code)
    except Stopped as stopped:
        with contextlib.suppress(OSError):  # the terminal may be gone
            click.echo(f"gbactl: stopped{'; ' * bool(stopped.outcome)}{stopped.outcome}.", err=True)
        sys.exit(128 + stopped.number)
