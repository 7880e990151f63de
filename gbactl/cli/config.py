"""`gbactl config`: what a group or key of the configuration means."""

from __future__ import annotations

import click

from gbactl.cli.overrides import complete_word


@click.command("config", context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("word", required=False, metavar="[GROUP|KEY]", shell_complete=complete_word)
def command(word: str | None) -> None:
    """Explain a group or a key: type, default, bounds, meaning, and when it acts.

    \b
    gbactl config                       all groups
    gbactl config checkpoint            a group: its options and keys
    gbactl config mode=gba              an option: its keys
    gbactl config mode.iota             a key; iota alone will do
    gbactl train mode=gba --cfg job     the keys that act in a run, filled in
    """
    from gbactl.launch.config_command import explain

    click.echo(explain(word))
