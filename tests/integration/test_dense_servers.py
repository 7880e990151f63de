"""Real processes of which some servers hold rows alone, over shared memory and TCP."""

from __future__ import annotations

from typing import Any

import pytest

from gbactl.replay.replay_command import replay, sentence
from tests.support.processes import Launched, Launcher
from tests.support.slow import slow

pytestmark = pytest.mark.beside

ONE_OF_THREE = ("cluster.servers=3", "cluster.dense_servers=1")
SWITCHES = (
    "switch.schedule=[{at: {samples: 1024}, to: gba}, {at: {samples: 2560}, to: shadow_easgd, set: {local_batch: 128}}]"
)


def ended(launched: Launched) -> dict[str, Any]:
    """The result of a run that ended well, whose samples all have a fate, with nothing left behind."""
    done = launched.finish().accounted(4_000)
    assert done.result["refused_frames"] == 0 and launched.left_behind() == []
    dense = [done.result["memory"][f"S{shard}"]["dense"] for shard in range(3)]
    assert dense[0] > 0 and dense[1:] == [0, 0]
    return done.result


@pytest.mark.parametrize(
    ("mode", "transport"), [("gba", "shm"), slow("gba", "tcp"), slow("fr_easgd", "shm"), slow("fr_easgd", "tcp")]
)
def test_they_train(launcher: Launcher, transport: str, mode: str) -> None:
    more = ("mode.k=3", "mode.local_batch=128") if mode == "fr_easgd" else ("model.hidden=[512,256]",)
    launched = launcher.start(f"mode={mode}", f"cluster.transport={transport}", *ONE_OF_THREE, *more)
    result = ended(launched)
    if mode == "gba":
        found = replay(launched.run_dir)
        assert found["identical"], sentence(found)
    else:
        assert result["replicas"]["exchanges"] > 0


@pytest.mark.slow
def test_sync_has_the_bits_of_a_run_with_the_dense_part_on_all(launcher: Launcher) -> None:
    plain = launcher.train("mode=sync", "collective=shm", "cluster.servers=3")
    one = ended(launcher.start("mode=sync", "collective=shm", *ONE_OF_THREE))
    assert one["checksums"]["model"] == plain["checksums"]["model"] and one["auc"] == plain["auc"]


@pytest.mark.slow
def test_through_switches(launcher: Launcher) -> None:
    result = ended(launcher.start("mode=sync", "collective=shm", *ONE_OF_THREE, SWITCHES))
    assert [phase["mode"] for phase in result["phases"]] == ["sync", "gba", "shadow_easgd"]


@pytest.mark.parametrize("server", [slow(0), 2])
def test_a_killed_one_comes_back(launcher: Launcher, server: int) -> None:
    plan = f"faults.plans=[{{kind: kill, servers: [{server}], step: 7}}]"
    saved = ("checkpoint=cpr", "checkpoint.interval_steps=3")
    result = ended(launcher.start("mode=gba", *ONE_OF_THREE, plan, *saved))
    assert [failed["process"] for failed in result["recovery"]] == [f"S{server}"]
