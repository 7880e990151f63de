"""switch=auto as it is typed: what it chooses from, and what cannot be."""

from __future__ import annotations

from typing import Any

import pytest

from gbactl.config import RunConfig, from_dict, to_dict
from gbactl.errors import ConfigError, UsageError
from gbactl.launch.hydra_config import compose


def test_it_chooses_between_the_run_s_mode_and_the_other_one_s_file() -> None:
    cfg = compose(["switch=auto", "mode=sync"])
    assert set(cfg.candidates) == {"sync", "gba"} and cfg.candidates["sync"] is cfg
    assert cfg.candidates["gba"].mode.options["iota"] == 3 and cfg.homes == {"servers", "workers"}
    back = compose(["switch=auto", "mode=gba", "mode.iota=7"])
    assert back.candidates["gba"] is back and back.candidates["sync"].mode.options == {}
    assert back.homes == {"servers", "workers"}


def test_the_other_mode_may_be_changed() -> None:
    cfg = compose(["switch=auto", "switch.changes={prefetch: none, local_batch: 64, row_staleness: row}"])
    gba = cfg.candidates["gba"]
    assert (gba.mode.prefetch, gba.local_batch, gba.mode.options["row_staleness"]) == ("none", 64, "row")
    assert {phase.mode.name for phase in cfg.possible} == {"sync", "gba"}
    same = compose(["switch=auto", "+mode.sparse_divisor=contributors"])
    assert same.candidates["gba"].mode.sparse_divisor == "contributors"


def test_it_survives_plain_containers() -> None:
    cfg = compose(["switch=auto", "switch.changes={iota: 5}", "switch.window=3"])
    again = from_dict(to_dict(cfg))
    assert again == cfg and again.candidates["gba"].mode.options["iota"] == 5


def test_without_it_there_is_nothing_to_choose() -> None:
    assert RunConfig().candidates == {} and RunConfig().possible == [RunConfig()]
    cfg = compose(["switch.schedule=[{at: {day: 1}, to: gba}]"])
    assert cfg.switch.name == "none" and cfg.candidates == {} and cfg.possible == cfg.phases


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["mode=bsp"], r"^switch=auto chooses between sync and gba; type mode= one of these, not mode=bsp\.$"),
        (["switch.schedule=[{at: {day: 1}, to: gba}]"], r"switch\.schedule does not belong .* one of: none"),
        (["switch.window=0"], r"^switch\.window=0 is not a number from 0\.001 to 1e\+09; type .*=10\.0\.$"),
        (["switch.every=-1"], r"^switch\.every=-1 is not a number from 0\.001 to"),
        (["switch.margin=-0.1"], r"^switch\.margin=-0\.1 is not a number from 0 to 1000; type"),
        (["switch.minimum_stay=inf"], r"^switch\.minimum_stay=inf is not a number from 0 to"),
        (["switch.changes={iotta: 5}"], r"^switch=auto: mode=gba has no key iotta"),
        (["switch.changes={local_batch: 7}"], r"^switch=auto: train\.global_batch=2048 is not a multiple"),
        (["switch.changes={workers: 8}"], r"keeps the number of workers; leave workers out"),
        (["switch.changes={prefetch: 7}"], r"^switch=auto: mode\.prefetch=7 is not "),
        (["mode=gba", "train.global_batch=1001", "mode.local_batch=7"], r"^switch=auto: train\.global_batch=1001"),
    ],
)
def test_a_mistake_is_one_sentence(overrides: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        compose(["switch=auto", *overrides])
    assert "\n" not in str(caught.value)


def test_a_schedule_in_a_file_is_refused_too() -> None:
    switch: dict[str, Any] = {"name": "auto", "schedule": [{"at": {"day": 1}, "to": "gba"}]}
    with pytest.raises(ConfigError, match=r"switch=auto follows no schedule; leave switch\.schedule out"):
        from_dict({"switch": switch})
    with pytest.raises(ConfigError, match=r"switch=often is not known; type switch= one of: none, auto"):
        from_dict({"switch": {"name": "often"}})
