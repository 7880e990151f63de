"""Overrides of the configuration as a verb's argument: completion in a shell, and the part of the help on them."""

from __future__ import annotations

import json
import textwrap

import click


def complete_overrides(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Complete GROUP=OPTION and KEY=."""
    from gbactl.conf_files import complete

    return complete(tuple(ctx.params.get(param.name or "") or ()), incomplete)


def complete_word(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Complete a group or key."""
    from gbactl.conf_files import GROUPS, all_keys

    return [each for each in (*GROUPS, *all_keys()) if each.startswith(incomplete)]


class OverridesCommand(click.Command):
    """Command whose help ends with all groups and the keys that are used most, from the files of conf/."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the groups and keys."""
        from gbactl.conf_files import GROUPS, MOST_USED, default_of, options

        with formatter.section("Groups"):
            chosen = [(each, " | ".join(options(each)) or f"keys {each}.*") for each in (*GROUPS, "experiment")]
            formatter.write_dl(chosen, col_max=14)
        with formatter.section("Keys that are used most (all: gbactl config)"):
            rows = []
            for key in MOST_USED:
                entry = default_of(key)
                value = entry.value if isinstance(entry.value, str) else json.dumps(entry.value)
                rows.append((f"{key}={value}", textwrap.shorten(entry.comment, 100, placeholder=" ...")))
            formatter.write_dl(rows, col_max=34)
