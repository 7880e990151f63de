"""Hook of MkDocs: fills the generated parts of the reference pages from the code, and loads Mermaid.

A page names its generated parts by markers such as `<!-- generated: configuration -->`. Meanings of configuration keys
are the comments of conf/, their bounds are the annotations of the schema (gbactl/config and the classes that it names).
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
import textwrap
from collections.abc import Callable, Iterator
from typing import Any, Literal, get_args, get_origin, get_type_hints

import click
from mkdocs.structure.pages import Page
from mkdocs.utils import get_relative_url

from gbactl.checked_dataclasses import shown
from gbactl.cli import cli
from gbactl.conf_catalogue import GROUPS, Entry, group_files, headline, options, single_keys
from gbactl.coordinator import event_log
from gbactl.faults.fault_kinds import KINDS
from gbactl.launch.config_command import fault_keys, hint_of, hints_of, names_processes, single_hints

MERMAID = "javascripts/mermaid.tiny.js"  # of @mermaid-js/tiny 11.17.2 on npm, MIT licence
MARKER = re.compile(r"<!-- generated: (\w+) -->")
UNLISTED = ("name", "plans", "target")  # the files of a group differ in these; both are explained beside its table
NAMED_PLANS = (
    "`faults.name`, the name of the plan in reports, and `faults.plans`, its list of faults. If several faults slow "
    "the same process, their factors multiply.\n\n"
)
OWN = (
    " The key `{}.target` is a class, MODULE.CLASS of any installed package: see [Add a {}](../tutorials/add-a-{}.md)."
)
IN_DOCS = {
    "mode": " The rules are in [Modes](../concepts/modes.md)." + OWN.format("mode", "mode", "mode"),
    "model": OWN.format("model", "model", "model"),
    "data": OWN.format("data", "data set", "data-set"),
}  # what a page says beside the schema


def by_value(found: dict[str, Any], show: Callable[[Any], str]) -> str:
    """Show what files say of a key: once where all agree, else each value with the files that have it."""
    groups: dict[str, list[str]] = {}
    for name, value in found.items():
        groups.setdefault(show(value), []).append(name)
    if len(groups) <= 1:
        return "".join(groups)
    return "<br>".join(f"{value} ({', '.join(map(code, files))})" for value, files in groups.items() if value)


def code(value: Any) -> str:
    """Show a value as it is typed."""
    return f"`{value if isinstance(value, str) and value else json.dumps(value)}`".replace("|", "\\|")


def cell(text: str) -> str:
    """Escape text for a cell of a table, and begin it with a capital letter unless it begins with a value."""
    text = text if re.match(r"(null|true|false|inf)\b", text) else text[:1].upper() + text[1:]
    return text.replace("|", "\\|").replace("<-", "&larr;").replace("<", "&lt;")


def bounds(hint: Any) -> str:
    """Show the values that a key takes, as its annotation says."""
    if get_origin(hint) is Literal:
        return ", ".join(map(code, get_args(hint)))
    if hint is None:
        return "text, or `null`"
    if names_processes(hint):
        return "indexes, `all`, `random`, a number, or a share"
    text = re.sub(r"\d{5,}", lambda match: f"{int(match[0]):,}", shown(hint))
    return text.replace(" or null", ", or `null`").replace("|", "\\|")


def table(header: str, rows: Iterator[str] | list[str]) -> str:
    """Join rows to a table."""
    return "\n".join([header, "|" + "---|" * header.count(" | ") + "---|", *rows, ""])


def keys_of(group: str, files: dict[str, dict[str, Entry]], prefix: str = "") -> str:
    """Table of a group's keys: those of its files in their order, and those of the schema that no file has."""
    first, several = next(iter(files.values())), len(files) > 1
    hints = hints_of(group, first["name"].value if "name" in first else "")
    order = [*dict.fromkeys(key for keys in files.values() for key in keys if key not in UNLISTED)]
    rows = []
    for key in order:
        there = {name: keys[key] for name, keys in files.items() if key in keys}
        hint = hint_of(hints, group, next(iter(there)), key)
        meaning = by_value({name: entry.comment for name, entry in there.items()}, cell)
        default = by_value({name: entry.value for name, entry in there.items()}, code)
        where = "" if len(there) == len(files) or not several else f"<br>Only in {', '.join(map(code, there))}."
        rows.append(f"| `{prefix}{key}` | {meaning}{where} | {default} | {bounds(hint)} |")
    return table("| Key | Meaning | Default | Values |", rows)


def alternatives(group: str) -> str:
    """Table of the options of a group: what is typed and the first comment of each file."""
    rows = [f"| `{group}={option}` | {cell(headline(group, option))} |" for option in options(group)]
    return table("| Typed | What it is |", rows)


def configuration() -> str:
    """Tables of every configuration key, group by group."""
    parts = []
    for group, text in GROUPS.items():
        parts.append(f"## {group}\n\n{text}{IN_DOCS.get(group, '')}\n")
        files = group_files(group)
        if len(files) > 1:
            parts.append(alternatives(group))
        if group == "data":
            parts += [f"### data={name}\n\n{keys_of(group, {name: keys}, 'data.')}" for name, keys in files.items()]
        else:
            parts.append(keys_of(group, files, f"{group}."))
        if group == "faults":
            parts.append("The files of the group `faults` differ in two keys: " + NAMED_PLANS + fault_kinds())
    hints = single_hints()
    rows = [
        f"| `{key}` | {cell(entry.comment)} | {code(entry.value)} | {bounds(hints[key])} |"
        for key, entry in single_keys().items()
    ]
    parts.append("## Single keys\n\n" + table("| Key | Meaning | Default | Values |", rows))
    parts.append("## experiment\n\nNamed combinations of options of the other groups.\n\n" + alternatives("experiment"))
    return "\n".join(parts)


def fault_kinds() -> str:
    """Section for each kind of fault: what it does, its keys, their defaults and bounds."""
    parts = []
    for name, kind in sorted(KINDS.items()):
        rows = []
        for each in fault_keys(name):
            default = "needed" if each.default is dataclasses.MISSING else code(each.default)
            rows.append(f"| `{each.key}` | {cell(each.meaning)} | {default} | {bounds(each.hint)} |")
        first = " ".join((kind.__doc__ or "").split())
        head = table("| Key | Meaning | Default | Values |", rows)
        parts.append(f"### kind: {name} {{ #fault-{name} }}\n\n{cell(first)}\n\n{head}")
    return "\n".join(parts)


def records() -> str:
    """Table of the event log's records that have fixed fields."""
    kinds = ("GRANT", "ANNOUNCE", "ORDER", "DROP", "LEFT", "JOINED", "STOP", "FORGO", "FINISH")
    rows = []
    for name in kinds:
        record = getattr(event_log, f"{name.title()}Record")
        hints = get_type_hints(record)
        fields = ", ".join(f"`{field}`: {shown_type(hints[field])}" for field in record._fields) or "none"
        text = " ".join(record.__doc__.split()).removeprefix("Event log record: ")
        rows.append(f"| {getattr(event_log, name)} | {name} | {cell(text)} | {fields} |")
    return table("| Number | Kind | What happened | Fields |", rows)


def shown_type(hint: Any) -> str:
    """Show the type of a record's field."""
    text = str(hint).replace("<class '", "").replace("'>", "")
    return text.replace("tuple[tuple[int, float], ...]", "list of (batch, weight)").replace(
        "tuple[int, ...]", "list of int"
    )


PARTS: dict[str, Callable[[], str]] = {"configuration": configuration, "records": records}


def with_examples(command: click.Command) -> None:
    """Turn the preformatted paragraphs of a command's help, and of its verbs', into code blocks of Markdown."""
    text = inspect.cleandoc(command.help or "")
    command.help = re.sub(r"\x08\n((?:.+\n?)+)", lambda match: f"```text\n{textwrap.dedent(match[1])}\n```\n", text)
    if isinstance(command, click.Group):
        for name in command.list_commands(click.Context(command)):
            verb = command.get_command(click.Context(command), name)
            assert verb is not None
            with_examples(verb)


def on_pre_build(**_: Any) -> None:
    """Prepare the help of all commands for the page that shows it."""
    with_examples(cli)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Replace the markers of a page. Raises KeyError for an unknown one."""
    return MARKER.sub(lambda match: PARTS[match[1]](), markdown)


def on_post_page(output: str, page: Page, **_: Any) -> str:
    """Load Mermaid from the site itself on pages with diagrams; the theme would load it from elsewhere."""
    if 'class="mermaid"' not in output:
        return output
    script = get_relative_url(MERMAID, page.url)
    return output.replace("</head>", f'<script src="{script}"></script></head>', 1)
