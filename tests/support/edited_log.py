"""Event logs with other contents, every checksum of the file's own right."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from gbactl.coordinator import event_log
from gbactl.coordinator.event_log import (
    EventLog,
    InfoRecord,
    Record,
)

Edit = Callable[[list[Record]], list[Record]]


def rewrite(source: Path, target: Path, edit: Edit) -> Path:
    """The same log with other records, every checksum of the file's own right."""
    records = edit(list(event_log.read(source / "events.log")))
    head = records[0]
    assert isinstance(head, InfoRecord)
    target.mkdir(parents=True, exist_ok=True)
    log = EventLog(target / "events.log", head.fields)
    for one in records[1:]:
        log.write(one)
    log.flush()
    return target


def nth(kind: Any, number: int, change: Callable[[Any], Record | None]) -> Edit:
    """An edit of one record of a class; None removes it."""

    def edit(records: list[Record]) -> list[Record]:
        place = [i for i, one in enumerate(records) if isinstance(one, kind)][number]
        changed = change(records[place])
        return [*records[:place], *([] if changed is None else [changed]), *records[place + 1 :]]

    return edit


def first(kind: Any, suits: Callable[[Any], bool], change: Callable[[Any], Record | None]) -> Edit:
    """An edit of the first record of a class that suits: where which one it is depends on who was fast."""

    def edit(records: list[Record]) -> list[Record]:
        number = [suits(one) for one in records if isinstance(one, kind)].index(True)
        return nth(kind, number, change)(records)

    return edit


def info(kind: int, number: int, **fields: Any) -> Edit:
    """An edit of one info record's fields."""

    def edit(records: list[Record]) -> list[Record]:
        place = [i for i, one in enumerate(records) if isinstance(one, InfoRecord) and one.kind == kind][number]
        one = records[place]
        assert isinstance(one, InfoRecord)
        return [*records[:place], InfoRecord(kind, {**one.fields, **fields}), *records[place + 1 :]]

    return edit
