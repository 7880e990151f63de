"""Configuration on the command line: `gbactl config`; overrides, their completion and help; options of commands."""

from __future__ import annotations

import functools
import math
import textwrap
from pathlib import Path
from typing import Any

import click


class FiniteRange(click.FloatRange):
    """Range of numbers that excludes nan and infinity, which pass click's bounds."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Convert a typed value; nan and infinity fail like text that is no number."""
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a finite number.", param, ctx)
        return number


def complete_overrides(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Complete GROUP=OPTION and KEY=."""
    return completions(tuple(ctx.params.get(param.name or "") or ()), incomplete)


def completions(before: tuple[str, ...], incomplete: str) -> list[str]:
    """List the completions of an override; `before`: the words before it.

    Bash takes = for a word of its own, other shells do not."""
    from gbactl.conf_catalogue import GROUPS, all_keys, options

    if before and not incomplete and options(before[-1]):
        return options(before[-1])
    if len(before) > 1 and before[-1] == "=":
        return [each for each in options(before[-2]) if each.startswith(incomplete)]
    group, equals, value = incomplete.partition("=")
    if equals:
        return [f"{group}={each}" for each in options(group) if each.startswith(value)]
    groups = [*(each for each in GROUPS if options(each)), "experiment"]
    found = [f"{each}=" for each in groups if each.startswith(incomplete)]
    if len(found) == 1 and "." not in incomplete:
        return completions((), found[0])
    names = {f"{each}.name" for each in groups}  # an option is chosen by GROUP=OPTION
    return found + [f"{key}=" for key in all_keys() if incomplete and key.startswith(incomplete) and key not in names]


#: context of a command with OVERRIDES: options of Hydra, such as --config-dir, stand among them
WITH_OVERRIDES = {"ignore_unknown_options": True}
overrides_argument = click.argument("overrides", nargs=-1, type=click.UNPROCESSED, shell_complete=complete_overrides)


def complete_word(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Complete a group or key."""
    from gbactl.conf_catalogue import GROUPS, all_keys

    return [each for each in (*GROUPS, *all_keys()) if each.startswith(incomplete)]


uri_option = click.option(
    "--uri", metavar="URI", help="URI of the tracking store (default: $MLFLOW_TRACKING_URI, else ./mlflow.db)."
)

default_option = functools.partial(click.option, show_default=True)
json_option = functools.partial(click.option, "--json", "as_json", is_flag=True)
count_option = functools.partial(click.option, type=click.IntRange(1), metavar="N")
margin_option = functools.partial(click.option, "--margin", type=FiniteRange(min=0, min_open=True), metavar="NUMBER")
file_option = functools.partial(click.option, type=click.Path(path_type=Path, dir_okay=False), metavar="FILE")


class OverridesCommand(click.Command):
    """Command whose help ends with all groups and the keys that are used most, from the files of conf/."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the groups and keys."""
        from gbactl.conf_catalogue import GROUPS, MOST_USED, default_of, options

        with formatter.section("Groups"):
            chosen = [(each, " | ".join(options(each)) or f"keys {each}.*") for each in (*GROUPS, "experiment")]
            formatter.write_dl(chosen, col_max=14)
        with formatter.section("Keys that are used most (all: gbactl config)"):
            rows = []
            for key in MOST_USED:
                entry = default_of(key)
                rows.append((f"{key}={entry.typed}", textwrap.shorten(entry.comment, 100, placeholder=" ...")))
            formatter.write_dl(rows, col_max=34)


@click.command("config")
@click.argument("word", required=False, metavar="[GROUP|KEY]", shell_complete=complete_word)
def config(word: str | None) -> None:
    """Explain a group or a key: meaning, type, bounds, default, and the runs in which the key has an effect.

    \b
    gbactl config                       all groups
    gbactl config checkpoint            a group: its options and keys
    gbactl config mode=gba              an option: its keys
    gbactl config mode.iota             a key; iota alone will do
    gbactl train mode=gba --cfg job     the keys that have an effect in a run
    """
    from gbactl.launch.config_command import explain

    click.echo(explain(word))
