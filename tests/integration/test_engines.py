"""Engines on a scheduler or a command: cluster=slurm and cluster=ray on real clusters of two nodes, cluster=exec.

Hosts are all this machine here; tests of several network stacks are in test_hosts.py.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import netns, ray_cluster
from tests.support.netns import LAUNCHER, Containers
from tests.support.processes import Launcher, collective, wait_for
from tests.support.ray_cluster import RayCluster
from tests.support.slurm_cluster import SlurmCluster, obstacle

OBSTACLE = obstacle()
EXEC = ("cluster=exec", "cluster.hosts=[a:1,b:1]", "cluster.exec='sh -c \"exec env AT={host} {agent}\"'")
SLURM = ("cluster=slurm", "cluster.workers=2")
RAY = ("cluster=ray", "cluster.bind=127.0.0.1")  # where this machine's name points to
RAY_OBSTACLE = ray_cluster.obstacle()
LONG = ("cluster.placement=packed", "data.days=4", "data.rows_per_day=60000")


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    """A Slurm cluster with two idle nodes of two CPUs."""
    if OBSTACLE:
        pytest.skip(OBSTACLE)
    cluster = SlurmCluster(tmp_path_factory.mktemp("slurm"))
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture
def allocated(slurm: SlurmCluster, launcher: Launcher) -> Launcher:
    """Launcher whose commands run in an allocation of both nodes, a task on each."""
    launcher.environment = {**launcher.environment, "SLURM_CONF": slurm.environment["SLURM_CONF"]}
    launcher.before = ("salloc", "-Q", "-N2", "-n2", "--no-kill")
    return launcher


@pytest.fixture
def containers(
    launcher: Launcher, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, shared_cache: Path
) -> Iterator[Containers]:
    """Two hosts with their own network, processes and mounts, without the run directory; a third has the launcher."""
    if why := netns.obstacle() or (None if collective() == "horovod" else "cluster=exec needs Horovod's launcher"):
        pytest.skip(why)
    (tmp_path / "runs").mkdir()
    hidden = (shared_cache, tmp_path / "runs")
    with netns.hosts(tmp_path_factory.mktemp("hosts"), ("a", "b"), hidden, kind=Containers) as made:
        launcher.before = made.inside(LAUNCHER)
        yield made
        assert not [line for name in made.names for line in made.ours(name)]


def reached(containers: Containers) -> tuple[str, ...]:
    """The overrides of a run on the containers."""
    command = f"cluster.exec='{containers.reach} {{host}} {{agent}}'"
    bind = f"cluster.bind={containers.address(LAUNCHER)}"
    return ("cluster=exec", "cluster.hosts=[a:1,b:1]", "cluster.forward=[GBACTL_CACHE]", command, bind)


@pytest.mark.beside
def test_a_command_reaches_the_hosts(launcher: Launcher, containers: Containers) -> None:
    done = launcher.start("mode=gba", *reached(containers)).finish()
    assert done.code == 0, done.err
    assert "host  address" in done.err and done.result["samples"]["trained"] == done.result["samples"]["read"]
    assert all(f"{name}     {containers.address(name)}" in done.err for name in containers.names)


@pytest.mark.beside
def test_checkpoints_need_a_run_directory_that_the_hosts_share(launcher: Launcher, containers: Containers) -> None:
    typed = (*reached(containers), "checkpoint=cpr")
    asked = launcher.gbactl("doctor", *typed, f"run_dir={launcher.cwd / 'runs' / 'new'}")
    assert asked.returncode == 1 and asked.stdout.count("MISSING") == 1, asked.stdout + asked.stderr
    assert "not seen by a, b" in " ".join(asked.stdout.split())
    done = launcher.start("mode=gba", *typed).finish()
    for name in containers.names:
        assert f"Host {name} does not see the run directory {done.run_dir}; put it on a file system that" in done.err
    assert done.code == 1 and not (done.run_dir / "events.log").exists()


@pytest.mark.slow
def test_a_lost_container_s_worker_goes_on_elsewhere(launcher: Launcher, containers: Containers) -> None:
    longer = ("cluster.placement=packed", "cluster.hang_seconds=3", "data.days=4", "data.rows_per_day=60000")
    launched = launcher.start("mode=gba", *reached(containers), *longer)
    launched.training()
    containers.kill("b")
    done = launched.finish()
    assert done.code == 0, done.err
    assert "Host b is gone" in done.err and [lost["process"] for lost in done.result["lost_workers"]] == ["W1"]


@pytest.mark.beside
def test_slurm_places_the_processes(allocated: Launcher, slurm: SlurmCluster) -> None:
    done = allocated.start("mode=sync", *SLURM).finish()
    assert done.code == 0, done.err
    assert "n1    127.0.0.1" in done.err and "n2    127.0.0.1" in done.err
    config = (done.run_dir / "config.yaml").read_text()
    assert "n1:1" in config and "n2:1" in config
    wait_for(lambda: slurm.ask("squeue", "-h") == "", 20)


@pytest.mark.slow
def test_sync_has_the_same_bits_under_every_engine(allocated: Launcher) -> None:
    salloc, allocated.before = allocated.before, ()
    here = allocated.train("mode=sync", "cluster.workers=2", "cluster.threads=1")
    there = allocated.train("mode=sync", "cluster.threads=1", *EXEC)
    allocated.before = salloc
    queued = allocated.train("mode=sync", "cluster.threads=1", *SLURM)
    assert here["checksums"] == there["checksums"] == queued["checksums"]


@pytest.mark.slow
def test_a_lost_node_s_processes_go_on_elsewhere(slurm: SlurmCluster, allocated: Launcher) -> None:
    launched = allocated.start("mode=gba", *SLURM, *LONG)
    launched.training()
    slurm.lose("n2")
    done = launched.finish()
    assert done.code == 0, done.err
    assert "Host n2 is gone" in done.err and done.result["recovery"]


@pytest.fixture
def ray(launcher: Launcher) -> Iterator[RayCluster]:
    """A Ray cluster of n1, its head, and n2, in which the launcher's commands run."""
    if RAY_OBSTACLE:
        pytest.skip(RAY_OBSTACLE)
    cluster = RayCluster("n1", "n2")
    launcher.environment = {**launcher.environment, **cluster.environment}
    try:
        yield cluster
    finally:
        cluster.stop()


@pytest.mark.beside
def test_ray_places_the_processes_and_none_of_them_loads_it(launcher: Launcher, ray: RayCluster) -> None:
    launched = launcher.start("mode=gba", *RAY, "data.rows_per_day=20000")
    pids = [launched.process.pid, *(launched.node(name) for name in ("C", "S0", "S1", "W0", "W1"))]
    loaded = [Path(f"/proc/{pid}/maps").read_text() for pid in pids]
    assert not any(word in maps for maps in loaded for word in ("/ray/", "/grpc"))
    done = launched.finish()
    assert done.code == 0, done.err
    assert "\nn1    " in done.err and "\nn2    " in done.err
    assert done.result["samples"]["trained"] + done.result["samples"]["decayed"] == done.result["samples"]["read"]


@pytest.mark.slow
def test_sync_has_the_same_bits_in_a_ray_cluster(launcher: Launcher, ray: RayCluster) -> None:
    assert launcher.train("mode=async", *RAY)["samples"]["trained"] > 0
    both = [launcher.train("mode=sync", *where)["checksums"] for where in (RAY, ("cluster=local",))]
    assert both[0] == both[1]


@pytest.mark.slow
def test_the_processes_of_a_ray_node_that_is_lost_go_on_elsewhere(launcher: Launcher, ray: RayCluster) -> None:
    launched = launcher.start("mode=gba", *RAY, *LONG, "data.days=24", "cluster.start_timeout=100")
    launched.training()

    def successors() -> int:
        return sum(path.stat().st_size > 0 for path in (launched.run_dir / "logs").glob("W1-*.log"))

    ray.ask("remove n2")
    wait_for(lambda: successors() == 1)
    ray.ask("add n3")
    wait_for(lambda: successors() == 2 or launched.process.poll() is not None)
    launched.process.send_signal(signal.SIGTERM)
    done = launched.finish()
    assert "Host n2 is gone" in done.err and "Host n2 is there again; it gets W1." in done.err, done.err


@pytest.mark.slow
def test_a_ray_head_that_is_lost_ends_the_run_with_a_sentence(launcher: Launcher, ray: RayCluster) -> None:
    launched = launcher.start("mode=gba", *RAY, *LONG)
    launched.training()
    ray.ask("remove n1")
    done = launched.finish()
    print(done.err)
    assert done.code == 1 and "Host n1 is gone" in done.err
