"""The event log: what is written is read; what is cut or changed is found, with its place in the file."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gbactl.coordinator import event_log
from gbactl.coordinator.event_log import (
    AnnounceRecord,
    DropRecord,
    EventLog,
    ForgoRecord,
    GrantRecord,
    InfoRecord,
    JoinedRecord,
    LeftRecord,
    OrderRecord,
    Record,
    StopRecord,
    read,
)
from gbactl.errors import EventLogError

HEADER = {"gbactl": "0.1.0", "config": {"seed": 3}}
RECORDS: list[Record] = [
    InfoRecord(event_log.HEADER, HEADER),
    InfoRecord(event_log.PHASE, {"number": 1, "training": True}),
    GrantRecord(3, 0, 7),
    GrantRecord(0, 1, 7),
    AnnounceRecord(3, 0, (7, 6), (7, -1)),
    AnnounceRecord(0, 1, (7, 7), (7, 7), (4100, ~12)),
    LeftRecord(2),
    OrderRecord(7, 2.0, 1.5, 0.25, ((0, 1.0), (1, 0.5))),
    DropRecord(3, 2),
    JoinedRecord(2),
    InfoRecord(event_log.CHECKSUM, {"S0": "abc"}),
    InfoRecord(event_log.NOTE, {"gone": [1], "struck": [3, 0.5]}),
    InfoRecord(event_log.FAILURE, {"number": 0, "at_s": 1.5, "process": "W1", "useful_s": None}),
    InfoRecord(event_log.END, {"step": 8}),
]


def write(path: Path, records: list[Record]) -> list[int]:
    """Writes a log; returns the offset behind each record."""
    log = EventLog(path, HEADER)
    ends = [log.bytes]
    for record in records[1:]:
        if isinstance(record, InfoRecord) and record.kind == event_log.END:
            log.close(**record.fields)
        else:
            log.write(record)
        ends.append(log.bytes)
    return ends


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "events.log"


def test_what_is_written_is_read(path: Path) -> None:
    ends = write(path, RECORDS)
    assert list(read(path)) == RECORDS
    assert path.stat().st_size == ends[-1]


u32, i32 = st.integers(0, (1 << 32) - 1), st.integers(-(1 << 31), (1 << 31) - 1)
worker, number = st.integers(0, (1 << 16) - 1), st.floats(allow_nan=False)
versions = st.integers(1, 40).flatmap(lambda n: st.tuples(*[st.lists(i32, min_size=n, max_size=n).map(tuple)] * 2))
made: list[st.SearchStrategy[Record]] = [
    st.builds(GrantRecord, worker, u32, u32),
    st.builds(lambda w, b, v: AnnounceRecord(w, b, *v), worker, u32, versions),
    st.builds(lambda w, b, v: AnnounceRecord(w, b, *v, v[0][::-1]), worker, u32, versions),
    st.builds(DropRecord, worker, u32),
    st.builds(LeftRecord, worker),
    st.builds(JoinedRecord, worker),
    st.builds(OrderRecord, u32, number, number, number, st.lists(st.tuples(u32, number), max_size=20).map(tuple)),
]
same_folder = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


@same_folder
@given(st.lists(st.one_of(made), max_size=30))
def test_any_records(path: Path, records: list[Record]) -> None:
    whole = [RECORDS[0], *records, RECORDS[-1]]
    write(path, whole)
    assert list(read(path)) == whole


def _up_to_error(path: Path) -> tuple[list[Record], str]:
    """(records before the damage, the complaint)."""
    found: list[Record] = []
    try:
        for record in read(path):
            found.append(record)
    except EventLogError as error:
        return found, str(error)
    return found, ""


def test_cut_anywhere_it_gives_what_is_whole_and_says_where_it_ends(path: Path) -> None:
    ends = write(path, RECORDS)
    data = path.read_bytes()
    for size in range(len(data)):
        path.write_bytes(data[:size])
        found, complaint = _up_to_error(path)
        whole = sum(end <= size for end in ends)
        assert found == RECORDS[:whole]
        if size < 10:
            assert "is not an event log" in complaint
        elif size in ends or size == 10:
            assert complaint == ""
            assert RECORDS[-1] not in found, "the missing end record tells"
        else:
            assert f"cut off at byte {ends[whole - 1] if whole else 10}." in complaint


def test_a_tail_ends_with_its_last_whole_record_and_is_gone_on_with(path: Path) -> None:
    ends = write(path, RECORDS)
    data = path.read_bytes()
    for size in range(ends[2], len(data) + 1):
        path.write_bytes(data[:size])
        whole = sum(end <= size for end in ends)
        assert event_log.tail(path, ends[2]) == (RECORDS[3:whole], ends[whole - 1])
    path.write_bytes(data[: ends[5] + 3])
    log = EventLog(path, {}, after=ends[5])
    log.write(LeftRecord(9))
    assert log.bytes > ends[5]
    log.close(step=8)
    assert list(read(path)) == [*RECORDS[:6], LeftRecord(9), RECORDS[-1]]
    changed = bytearray(data)
    changed[ends[3] + 10] ^= 1
    path.write_bytes(changed)
    with pytest.raises(EventLogError, match="is damaged"):
        event_log.tail(path, ends[2])


def test_written_ahead_everything_that_somebody_acts_upon_is_in_the_file(path: Path) -> None:
    log = EventLog(path, HEADER, ahead=True)
    log.info(event_log.PHASE, {"number": 1})
    for number, record in enumerate((
        GrantRecord(1, 2, 3), DropRecord(1, 2), LeftRecord(1), JoinedRecord(1), StopRecord(4), ForgoRecord(1),
        InfoRecord(event_log.NOTE, {}), InfoRecord(event_log.FAILURE, {}),
    )):  # fmt: skip
        log.write(AnnounceRecord(1, 2, (3,), (3,)))
        log.write(record)
        assert len(list(read(path))) == 2 + 2 * (number + 1)


def test_any_changed_byte_is_found_and_nothing_before_it_is_lost(path: Path) -> None:
    ends = write(path, RECORDS)
    data = path.read_bytes()
    for place in range(len(data)):
        for flip in (0x01, 0x04, 0x80, 0xFF):
            changed = bytearray(data)
            changed[place] ^= flip
            path.write_bytes(changed)
            found, complaint = _up_to_error(path)
            before = sum(end <= place for end in ends)
            assert found == RECORDS[:before], (place, flip)
            assert complaint, (place, flip)
            if place >= 10:
                assert re.search(rf"at byte {ends[before - 1] if before else 10}\b", complaint)


@same_folder
@given(st.binary(max_size=300), st.booleans())
def test_random_bytes(path: Path, junk: bytes, dressed: bool) -> None:
    path.write_bytes(event_log.MAGIC + bytes([event_log.FORMAT, 0]) + junk if dressed else junk)
    found, complaint = _up_to_error(path)
    assert complaint or (dressed and not junk and not found)


def test_another_format(path: Path) -> None:
    write(path, RECORDS)
    data = bytearray(path.read_bytes())
    data[8] = 99
    path.write_bytes(data)
    with pytest.raises(EventLogError, match="has format 99, this gbactl reads"):
        list(read(path))


def test_an_order_is_in_the_file_when_it_is_journaled(path: Path) -> None:
    log = EventLog(path, HEADER)
    log.write(GrantRecord(1, 2, 3))
    log.write(OrderRecord(0, 1.0, 1.0, 1.0, ((2, 1.0),)))
    assert list(read(path))[1:] == [GrantRecord(1, 2, 3), OrderRecord(0, 1.0, 1.0, 1.0, ((2, 1.0),))]


@pytest.mark.parametrize("part_rows", [(), (4100, 60_000, ~4100)])
@pytest.mark.parametrize(("lag", "bound"), [(0, 75), (3, 85), (1000, 100)])
def test_a_gradient_costs_at_most_100_bytes_with_three_servers(
    path: Path, lag: int, bound: int, part_rows: tuple[int, ...]
) -> None:
    """`async`, the mode with the most records, late in a long run; shards at different versions, a schedule."""
    log = EventLog(path, HEADER)
    before, first = log.bytes, 1_000_000
    for step in range(first, first + 100):
        log.write(GrantRecord(300, step, step))
        dense = (step - lag, step, step) if lag else (step, step, step)
        log.write(AnnounceRecord(300, step, (step, step - lag, step), dense, part_rows))
        log.write(OrderRecord(step, 1.0, 1.0, 0.3 if lag else 1.0, ((step, 1.0),)))
    size = (log.bytes - before) / 100
    log.close()
    assert size <= bound + (1 + 3 * 3 if part_rows else 0)


def test_versions_and_numbers_that_do_not_fit_are_never_written(path: Path) -> None:
    log = EventLog(path, HEADER)
    bad: list[Callable[[], None]] = [
        lambda: log.write(GrantRecord(1 << 16, 0, 0)),
        lambda: log.write(AnnounceRecord(0, 0, (1 << 31,), (0,))),
        lambda: log.write(AnnounceRecord(0, -1, (0,), (0,))),
        lambda: log.write(AnnounceRecord(0, 0, (0,), (0, 0))),
        lambda: log.write(AnnounceRecord(0, 0, (0, 0), (0, 0), (7,))),
        lambda: log.write(AnnounceRecord(0, 0, (0,), (0,), (1 << 31,))),
        lambda: log.write(DropRecord(-2, 0)),
    ]
    for write_it in bad:
        with pytest.raises(ValueError, match=r"does not fit|shards"):
            write_it()
    log.close()
    assert len(list(read(path))) == 2
