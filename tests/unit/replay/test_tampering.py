"""Whatever was changed in a log is refused or named, never passed over."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gbactl.coordinator import event_log
from gbactl.coordinator.event_log import (
    AnnounceRecord,
    DropRecord,
    FinishRecord,
    GrantRecord,
    LeftRecord,
    OrderRecord,
    Record,
)
from gbactl.errors import EventLogError, GbactlError
from gbactl.replay.replay_command import failed, replay, sentence
from tests.support.edited_log import first, info, nth, rewrite

in_one_folder = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=50)


def wrong_weight(one: OrderRecord) -> OrderRecord:
    (batch, weight), *rest = one.members  # before step iota + 1, when all weights are 1
    return one._replace(members=((batch, weight / 2), *rest))


def newer(one: AnnounceRecord) -> bool:
    return any(one.dense_versions)


EDITS: dict[str, tuple[Any, str]] = {
    "weight": (nth(OrderRecord, 2, wrong_weight), r"Step 2: the log gives batch \d+ weight 0.5, the policy 1.0 \(W"),
    "divisor": (nth(OrderRecord, 3, lambda r: r._replace(divisor=5.0)), "Step 3: the log has divisor 5.0"),
    "lr": (nth(OrderRecord, 3, lambda r: r._replace(lr_scale=0.3)), "Step 3: the log has lr scale 0.3"),
    "sum": (nth(OrderRecord, 3, lambda r: r._replace(weight_sum=3.5)), "Step 3: the log has weight sum 3.5"),
    "members": (
        nth(OrderRecord, 3, lambda r: r._replace(members=r.members[::-1])), "Step 3: the log has batches"
    ),
    "token": (nth(GrantRecord, 20, lambda r: r._replace(token=9)), r"The log hands W\d batch 20 with token 9"),
    "batch": (nth(GrantRecord, 20, lambda r: r._replace(batch=21)), r"The log hands W\d batch 21"),
    "worker": (nth(AnnounceRecord, 9, lambda r: r._replace(worker=77)), r"announces W77 batch \d+, which was not"),
    "grant": (nth(GrantRecord, 20, lambda _: None), r"The log hands W\d batch 21 with token"),
    "drop": (nth(OrderRecord, 5, lambda r: DropRecord(1, 2)), r"6 where 5 is due|from versions .* at step 5"),
    "left": (nth(GrantRecord, 9, lambda r: LeftRecord(r.worker)), "The log (hands|announces) W"),
    "versions": (
        first(AnnounceRecord, newer, lambda r: r._replace(dense_versions=(0, 0, 0))), "Shard 0 is not as logged"
    ),
    "epoch": (info(event_log.PHASE, 0, epoch=1), r"Shard 0 is not as logged in step 4 \(W\d batch \d"),
    "checksum": (info(event_log.CHECKSUM, 1, digest="0" * 32), r"Shard \d is not as logged in step 4 \(W\d batch"),
    "order": (nth(OrderRecord, 3, lambda _: None), r"step 4 where 3 is due|batch \d+ from versions .* at step 3"),
    "end": (info(event_log.END, 0, step=3), "ends at step 3 after 24 orders"),
    "split": (info(event_log.PHASE, 0, split=9), "has a phase 1 that this run cannot have had"),
    "phase": (info(event_log.PHASE, 0, samples=10), "has a phase 1 that this run cannot have had"),
    "type": (info(event_log.PHASE, 0, samples="10"), "begins phase 1 with"),
    "data": (info(event_log.HEADER, 0, data="0" * 64), "The data are not what"),
    "config": (info(event_log.HEADER, 0, config={"mode": {"name": "gabba"}}), "a configuration that this gbactl does"),
    "shard": (info(event_log.CHECKSUM, 0, shard=3), "a checksum that says"),
    "header": (info(event_log.HEADER, 0, threads=None), "a header that a replay cannot use"),
}  # fmt: skip


@pytest.mark.parametrize("name", EDITS)
def test_what_was_changed_is_named(recorded: Path, tmp_path: Path, name: str) -> None:
    edit, text = EDITS[name]
    changed = rewrite(recorded, tmp_path, edit)
    with pytest.raises(GbactlError, match=text):
        verdict = replay(changed)
        assert failed(verdict)
        raise GbactlError(sentence(verdict))


def test_nothing_changed_is_nothing_found(recorded: Path, tmp_path: Path) -> None:
    assert replay(rewrite(recorded, tmp_path, lambda records: records))["identical"]


@in_one_folder
@given(st.data())
def test_any_flipped_byte_is_refused(recorded: Path, tmp_path: Path, data: st.DataObject) -> None:
    content = bytearray((recorded / "events.log").read_bytes())
    place = data.draw(st.integers(0, len(content) - 1))
    content[place] ^= data.draw(st.integers(1, 255))
    (tmp_path / "events.log").write_bytes(content)
    with pytest.raises(EventLogError, match=r"at byte \d+|is not an event log|has format"):
        replay(tmp_path)


def journal(records: list[Record]) -> list[int]:
    """Places of the records none of which can be missed (to lose a worker that had nothing can)."""
    kinds = (GrantRecord, AnnounceRecord, OrderRecord, DropRecord, FinishRecord)
    return [i for i, one in enumerate(records) if isinstance(one, kinds)]


@in_one_folder
@given(st.data())
def test_any_record_that_is_left_out_is_found(disorder: Path, tmp_path: Path, data: st.DataObject) -> None:
    def edit(records: list[Record]) -> list[Record]:
        place = data.draw(st.sampled_from(journal(records)))
        return [*records[:place], *records[place + 1 :]]

    with contextlib.suppress(EventLogError):
        assert failed(replay(rewrite(disorder, tmp_path, edit)))


def test_a_log_that_is_cut_is_replayed_as_far_as_it_goes(recorded: Path, tmp_path: Path) -> None:
    def cut(records: list[Record]) -> list[Record]:
        orders = [i for i, one in enumerate(records) if isinstance(one, OrderRecord)]
        return records[: orders[8] + 1]

    changed = rewrite(recorded, tmp_path, cut)
    for until in (None, 9):
        verdict = replay(changed, until)
        assert (verdict["identical"], verdict["steps"], verdict["checksums"]) == (True, 9, 3)
        assert ("is cut off at byte" in sentence(verdict)) == (until is None) == (verdict["cut_at"] is not None)
    log = changed / "events.log"
    log.write_bytes(log.read_bytes()[:-1])  # within a record: a torn one, or one whose length is damaged
    with pytest.raises(EventLogError, match=r"is cut off at byte \d+\. What stands before is as logged: 8 steps, "):
        replay(changed)
    wrong = rewrite(recorded, tmp_path / "wrong", lambda r: info(event_log.CHECKSUM, 1, digest="0" * 32)(cut(r)))
    assert failed(replay(wrong))


def test_another_machine_may_have_other_bits_but_no_other_decisions(recorded: Path, tmp_path: Path) -> None:
    other = info(event_log.HEADER, 0, torch="0.1")
    same = replay(rewrite(recorded, tmp_path, other))
    assert same["identical"] and "another version of torch" in sentence(same)
    bits = replay(rewrite(recorded, tmp_path, lambda r: info(event_log.CHECKSUM, 1, digest="0" * 32)(other(r))))
    assert not bits["identical"] and not failed(bits) and bits["steps"] == 24
    assert bits["divergence"]["step"] == 4 and "bits may differ" in sentence(bits)
    decided = replay(rewrite(recorded, tmp_path, lambda r: EDITS["weight"][0](other(r))))
    assert failed(decided) and decided["divergence"]["kind"] == "decision"
