"""Descriptions of mode switches: names of switched runs, sentences, and the output of `gbactl switch`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gbactl.coordinator.mode_switch import BY_AUTO
from gbactl.errors import GbactlError
from gbactl.policies.policy import names
from gbactl.switching.switch_texts import (
    answer,
    each_mode,
    from_listed,
    legend,
    mode_id,
    modes_sentence,
    requested_sentence,
    status,
    switched,
)


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
    told = modes_sentence("sync", [{"to": "gba", "day": day, "first_sample": sample, "fresh_optimizer": fresh}])
    assert from_listed(told) == name and from_listed("sync") == "sync" and from_listed("what; else") == "what; else"


PROGRESS: dict[str, Any] = {
    "mode": "gba", "label": "day 1", "rounds": 3, "round_finished": 250, "round_samples": 1000, "step": 1234,
    "samples": 2_500_000, "eps": 4.5, "round_eps": 98765.4, "live": 63,
    "staleness": {"mean": 0.5, "p50": 0.0, "p99": 3.0},
    "lost": [7], "workers": {f"W{worker}": 1500.0 + worker for worker in range(64)},
    "switches": [
        {"state": "done", "step": 100, "from": "sync", "to": "gba", "pause_ms": 31.4},
        {"state": "stayed", "step": 200, "from": "gba", "to": "sync", "why": "W7 died, and sync needs every worker"},
    ],
}  # fmt: skip


def test_a_job_fits_a_terminal() -> None:
    name, *lines = status(Path("/a") / ("20260101-" + "x" * 100), PROGRESS).splitlines()
    assert name == "20260101-" + "x" * 100 and max(map(len, lines)) <= 80
    text = "\n".join(lines)
    for part in ("gba (day 1 of 3, 25 % of it)", "1,234", "98,765", "p99 3", "63, W7 is lost", "W63:1,563",
                 "step 100: sync to gba, after a pause of 31 ms", "not done: W7 died"):  # fmt: skip
        assert part in text
    assert status(Path("runs/a"), {"switches": []}) == "a: starting"
    look = {"sync": 1234.5, "gba": 5678.9, "reason": "gba promises 4.60 of sync, more than 1.21"}
    told = status(Path("runs/a"), {**PROGRESS, "auto": look})
    assert max(map(len, told.splitlines())) <= 80
    assert "sync 1,234, gba 5,679 samples/s: gba promises 4.60 of sync, more than 1.21" in " ".join(told.split())


def test_an_answer_is_a_sentence() -> None:
    told = {"from": "sync", "to": "gba", "step": 9}
    assert "already" in answer({**told, "state": "same"})
    assert answer({**told, "state": "done", "pause_ms": 12.3}).endswith("from step 9 on, after a pause of 12 ms.")
    assert answer({**told, "state": "done", "pause_ms": None}) == "The run goes on in gba from step 9 on."
    fresh = {**told, "state": "done", "pause_ms": None, "fresh_optimizer": True}
    assert answer(fresh) == "The run goes on in gba from step 9 on, its optimizer's state begun anew."
    replicas = {**told, "from": "fr_ma", "state": "done", "pause_ms": 5.0, "dense": "mean of the replicas"}
    assert answer(replicas).endswith("from step 9 on, after a pause of 5 ms, with the mean of the replicas.")
    assert "as soon as" in answer({**told, "state": "accepted"})
    with pytest.raises(GbactlError, match=r"^No switch: mode\.iota must be 0\.$"):
        answer({"state": "refused", "why": "mode.iota must be 0."})
    with pytest.raises(GbactlError, match=r"^The run stays in sync: a worker did not answer\.$"):
        answer({**told, "state": "stayed", "why": "a worker did not answer"})


def test_every_mode_has_a_number_of_its_own() -> None:
    numbers = [mode_id(mode) for mode in names()]
    assert None not in numbers and len(set(numbers)) == len(numbers)
    assert mode_id("gba") == 2.0 and mode_id("unheard-of") is None
    assert legend().startswith("0 sync, 1 async")
    switches = [{"to": "gba", "day": "day 1", "first_sample": 0}, {"to": "sync", "day": "day 1", "first_sample": 64}]
    assert modes_sentence("sync", switches) == "sync; gba from day 1, sample 0; sync from day 1, sample 64"
    anew = [{**switches[0], "fresh_optimizer": True}]
    assert modes_sentence("sync", anew) == "sync; gba from day 1, sample 0, optimizer anew"


def test_switches_that_a_user_requested_are_not_in_the_command() -> None:
    by_schedule, by_auto = {"to": "gba", "step": 9}, {"to": "gba", "step": 9, "id": BY_AUTO}
    assert requested_sentence([by_schedule, by_auto]) == ""
    asked = [{"to": "gba", "step": 259, "id": 1}, by_schedule, {"to": "sync", "step": 300, "id": 2}]
    assert requested_sentence(asked) == (
        "requested during the run, and not in its command: switch to gba at step 259, to sync at step 300"
    )
