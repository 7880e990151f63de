"""cluster=slurm outside an allocation, and with variables that do not fit; the nodes' slots."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gbactl.config.engine_interface import engine_named
from gbactl.config.groups import ClusterConfig
from gbactl.engine.host_placement import Host
from gbactl.engine.hosts import HostsEngine
from gbactl.engine.slurm import NO_KILL, allocation, counts, outlives_nodes
from gbactl.errors import ConfigError


@given(st.lists(st.tuples(st.integers(1, 999), st.integers(1, 20)), min_size=1, max_size=9))
def test_counts_of_nodes(groups: list[tuple[int, int]]) -> None:
    text = ",".join(str(each) if times == 1 else f"{each}(x{times})" for each, times in groups)
    assert list(counts(text)) == [each for each, times in groups for _ in range(times)]


@pytest.mark.parametrize("text", ["", "a", "2(x)", "2(3)", "-1", "2,"])
def test_what_is_no_list_of_counts(text: str) -> None:
    with pytest.raises(ValueError, match="no list of counts"):
        list(counts(text))


def test_outside_an_allocation_it_says_how_to_get_one(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"works in an allocation, and this is none; type salloc -N 2 --no-kill"):
        allocation({})
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(
        ConfigError, match=r"Slurm.s command scontrol cannot be run .*type this where Slurm is installed"
    ):
        allocation({"SLURM_JOB_NODELIST": "n[1-2]"})
    with pytest.raises(ConfigError, match=r"^srun starts gbactl 4 times here, .* type gbactl without srun"):
        allocation({"SLURM_JOB_NODELIST": "n[1-2]", "SLURM_STEP_NUM_TASKS": "4"})


@pytest.mark.parametrize(
    ("variables", "slots"),
    [
        ({"SLURM_JOB_CPUS_PER_NODE": "16(x2)"}, (16, 16)),
        ({"SLURM_JOB_CPUS_PER_NODE": "16,8", "SLURM_NTASKS": "3", "SLURM_TASKS_PER_NODE": "2,1"}, (2, 1)),
        ({"SLURM_JOB_CPUS_PER_NODE": "16(x3)"}, None),
        ({"SLURM_NTASKS": "3"}, None),
    ],
)
def test_slots_are_a_node_s_tasks_or_else_its_cpus(
    variables: dict[str, str], slots: tuple[int, ...] | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    scontrol = tmp_path / "scontrol"
    scontrol.write_text("#!/bin/sh\necho n1; echo n2\n")
    scontrol.chmod(0o755)
    environment = {"SLURM_JOB_NODELIST": "n[1-2]", **variables}
    if slots is None:
        with pytest.raises(ConfigError, match=r"^Slurm's SLURM_\w+ does not fit its nodes; type cluster\.hosts="):
            allocation(environment)
    else:
        assert allocation(environment) == tuple(map(Host, ("n1", "n2"), slots))


def test_an_agent_is_started_by_srun_on_its_node(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_named("slurm")
    assert isinstance(engine, HostsEngine)
    with pytest.raises(ConfigError, match="works in an allocation, and this is none"):  # srun would ask for one
        engine.agent(ClusterConfig("slurm"), "n1")
    monkeypatch.setenv("SLURM_JOB_NODELIST", "n1")
    told = engine.agent(ClusterConfig("slurm", python="/opt/python"), "n1")
    assert told.startswith("srun -u --overlap ") and told.endswith(" --nodelist=n1 /opt/python -m gbactl.engine.agent")
    assert engine.defaults({"hosts": ["n1:2"], "workers": None}) == {"workers": 2}


@pytest.mark.parametrize(
    ("text", "there"),
    [
        ("salloc -N2 --no-kill bash", True), (" -k", True), (" --no-kill=off", False), ("salloc --no-killing", False),
        ("salloc -N 2", False),
    ],
)  # fmt: skip
def test_no_kill_on_a_command_line(text: str, there: bool) -> None:
    assert bool(NO_KILL.search(text)) is there


def test_an_allocation_that_outlives_its_nodes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert outlives_nodes({"SBATCH_NO_KILL": "1"}) and not outlives_nodes({"SLURM_JOB_ID": "1"})
    scontrol = tmp_path / "scontrol"
    scontrol.write_text("#!/bin/sh\nprintf '#!/bin/sh\\n#SBATCH -N 2 --no-kill\\n'\n")
    scontrol.chmod(0o755)
    assert outlives_nodes({"SLURM_JOB_ID": "1"})
