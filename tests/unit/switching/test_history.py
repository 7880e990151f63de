"""The name of a run that was switched."""

from __future__ import annotations

import pytest

from gbactl.switching.history import each_mode, from_listed, listed, switched


def test_a_run_is_named_by_what_it_did() -> None:
    name = switched(switched("sync", "gba", "day2"), "sync", "80%", fresh=True)
    assert name == "sync>gba@day2>sync@80%+fresh"
    assert each_mode(name) == ["sync", "gba", "sync"] and each_mode("hop_bs") == ["hop_bs"]


@pytest.mark.parametrize(
    ("day", "sample", "fresh", "name"),
    [("day 2", 0, False, "sync>gba@day2"), ("epoch 1", 640, False, "sync>gba@epoch1:640"),
     ("day 2", 0, True, "sync>gba@day2+fresh")],
)  # fmt: skip
def test_an_old_run_has_a_sentence_alone(day: str, sample: int, fresh: bool, name: str) -> None:
    told = listed("sync", [{"to": "gba", "day": day, "first_sample": sample, "fresh_optimizer": fresh}])
    assert from_listed(told) == name and from_listed("sync") == "sync" and from_listed("what; else") == "what; else"
