"""Engines on several hosts: the same tests for each, and what is peculiar to one.

cluster=hosts is by ssh to two network namespaces or, without root, to this machine; cluster=slurm and cluster=ray are
on real clusters of two nodes; those of cluster=exec are containers too. More on network stacks is in test_hosts.py.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.support import netns, ray_cluster
from tests.support.commands import ROOT
from tests.support.netns import LAUNCHER, Containers, Hosts
from tests.support.pages import commands
from tests.support.processes import SECONDS, SMALL, Launcher, collective, wait_for
from tests.support.ray_cluster import AUTOSCALER, JOBS, RayCluster
from tests.support.slurm_cluster import SlurmCluster, obstacle
from tests.support.traces import traced

OBSTACLE = obstacle()
# what is typed for an engine with two hosts of one worker each
ENGINES = {
    "hosts": ("cluster=hosts", "cluster.hosts=[a:1,b:1]", "cluster.ssh='ssh -F ssh_config'"),
    "exec": ("cluster=exec", "cluster.hosts=[a:1,b:1]", "cluster.exec='sh -c \"exec env AT={host} {agent}\"'"),
    "slurm": ("cluster=slurm", "cluster.workers=2"),
    "ray": ("cluster=ray", "cluster.bind=127.0.0.1"),  # where this machine's name points to
}
CLUSTERS = {"hosts": "by_ssh", "slurm": "allocated", "ray": "ray"}  # fixtures
SAVED = ("checkpoint=cpr", "checkpoint.interval_steps=3")
KILLS = "faults.plans=[{kind: kill, servers: [0], step: 5}, {kind: kill, workers: [1], step: 10}]"
PACKED = ("cluster.placement=packed",)
LONG = ("data.days=4", "data.rows_per_day=60000")


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
def ray(launcher: Launcher, request: pytest.FixtureRequest) -> Iterator[RayCluster]:
    """A Ray cluster of n1, its head, and n2, in which the launcher's commands run. The parameter: what the head has."""
    more = getattr(request, "param", ())
    if why := ray_cluster.obstacle(more):
        pytest.skip(why)
    cluster = RayCluster("n1", "n2", more=more)
    launcher.environment = {**launcher.environment, **cluster.environment}
    try:
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture
def by_ssh(launcher: Launcher) -> Iterator[Hosts]:
    """Two hosts with their own network and sshd, and the launcher on a third; or, without root, all of them here."""
    if not netns.SSHD.exists():
        pytest.skip("ssh to hosts needs the Debian package openssh-server")
    with netns.hosts(launcher.cwd, ("a", "b"), kind=netns.Loopback if netns.obstacle() else Hosts) as made:
        launcher.before = made.inside(LAUNCHER)
        yield made


@pytest.fixture
def containers(
    launcher: Launcher,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    shared_cache: Path,
    request: pytest.FixtureRequest,
) -> Iterator[Containers]:
    """Two hosts with their own network, processes and mounts, and a third with the launcher.

    They do not see the run directory, unless the parameter is "shared"."""
    if why := netns.obstacle() or (None if collective() == "horovod" else "cluster=exec needs Horovod's launcher"):
        pytest.skip(why)
    (tmp_path / "runs").mkdir()
    hidden = (shared_cache, *([] if getattr(request, "param", "") == "shared" else [tmp_path / "runs"]))
    with netns.hosts(tmp_path_factory.mktemp("hosts"), ("a", "b"), hidden, kind=Containers) as made:
        launcher.before = made.inside(LAUNCHER)
        yield made
        assert not [line for name in made.names for line in made.ours(name)]


@pytest.fixture
def engine(request: pytest.FixtureRequest) -> tuple[str, ...]:
    """What is typed for an engine of the table, on which the launcher then runs."""
    if collective() != "horovod":
        pytest.skip("engines on several hosts need Horovod's launcher")
    if request.param in CLUSTERS:
        request.getfixturevalue(CLUSTERS[request.param])
    return ENGINES.get(request.param, (f"cluster={request.param}",))


every_engine = pytest.mark.parametrize("engine", ENGINES, indirect=True)


# -- the same for every engine ----------------------------------------------------------------------


@pytest.mark.slow
@every_engine
def test_sync_has_the_same_bits_as_on_one_host(launcher: Launcher, engine: tuple[str, ...]) -> None:
    there = launcher.train("mode=sync", "seed=1", "cluster.threads=1", *engine)
    launcher.before = ()
    here = launcher.train("mode=sync", "seed=1", "cluster.workers=2", "cluster.threads=1")
    assert here["checksums"] == there["checksums"]


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["local", *ENGINES], indirect=True)
@pytest.mark.parametrize("mode", ["sync", "gba"])
def test_killed_processes_are_replaced(launcher: Launcher, engine: tuple[str, ...], mode: str) -> None:
    done = launcher.start(f"mode={mode}", *SAVED, KILLS, *engine).finish().accounted(4_000)
    assert [failed["process"] for failed in done.result["recovery"]] == ["S0", "W1"]


@pytest.mark.slow
@every_engine
@pytest.mark.parametrize("mode", ["sync", "gba"])
def test_a_lost_host_s_processes_go_on_elsewhere(launcher: Launcher, engine: tuple[str, ...], mode: str) -> None:
    """Its agent is killed, and with it a worker and a server."""
    launched = launcher.start(f"mode={mode}", "checkpoint=cpr", *LONG, *engine)
    launched.training()
    agent = int(Path(f"/proc/{launched.node('W1')}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(agent, signal.SIGKILL)
    done = launched.finish().accounted(180_000)
    assert re.search(r"Host \S+ is gone: its agent (has ended|is gone)\.", done.err), done.err  # not its silence
    assert {each["process"] for each in done.result["recovery"]} == {"W1", "S1"}


# -- of one engine ----------------------------------------------------------------------------------


def reached(containers: Containers) -> tuple[str, ...]:
    """The overrides of a run on the containers."""
    command = f"cluster.exec='{containers.reach} {{host}} {{agent}}'"
    bind = f"cluster.bind={containers.address(LAUNCHER)}"
    return ("cluster=exec", "cluster.hosts=[a:1,b:1]", "cluster.forward=[GBACTL_CACHE]", command, bind)


@pytest.mark.beside
def test_a_command_reaches_the_hosts(launcher: Launcher, containers: Containers) -> None:
    typed = ("mode=hop_bs", *reached(containers), "--trace")  # no worker can do everything before the other has begun
    done = launcher.start(*typed).finish()
    assert done.code == 0, done.err
    traced(done.run_dir, done.result)
    assert "host  address" in done.err and done.result["samples"]["trained"] == done.result["samples"]["read"]
    assert all(f"{name}     {containers.address(name)}" in done.err for name in containers.names)
    assert done.result["wire"]["bytes"]["rows"] > 0  # over gbactl's own connections between the hosts
    assert "  If this run is stopped, it is not saved: the run directory is not seen by a, b.\n" in done.err


@pytest.mark.slow
@pytest.mark.beside
def test_checkpoints_need_a_run_directory_that_the_hosts_share(launcher: Launcher, containers: Containers) -> None:
    typed = (*reached(containers), "checkpoint=cpr")
    asked = launcher.gbactl("doctor", *typed, f"run_dir={launcher.cwd / 'runs' / 'new'}")
    assert asked.returncode == 1 and asked.stdout.count("MISSING") == 1, asked.stdout + asked.stderr
    assert {"not", "seen", "by"} <= set(asked.stdout.split())  # where the column wraps depends on the path
    done = launcher.start("mode=gba", *typed).finish()
    for name in containers.names:
        assert f"Host {name} does not see the run directory {done.run_dir}; put it on a file system that" in done.err
    assert done.code == 1 and not (done.run_dir / "events.log").exists()


@pytest.mark.beside
@pytest.mark.slow
def test_a_container_that_comes_back_gets_its_worker_back(launcher: Launcher, containers: Containers) -> None:
    """As when a StatefulSet makes another pod of the name of a lost one."""
    slowly = "faults.plans=[{kind: constant, workers: all, factor: 4}]"
    launched = launcher.start("mode=gba", *reached(containers), *PACKED, *LONG, slowly)
    launched.training()
    containers.kill("b")
    wait_for(lambda: (launched.run_dir / "logs" / "W1-1.log").exists())
    containers.restart("b")
    wait_for(lambda: (launched.run_dir / "logs" / "W1-2.log").exists())
    launched.process.send_signal(signal.SIGINT)
    told = launched.finish(60).err
    assert "Host b is gone: " in told and "Host b is there again; it gets W1." in told
    assert "gbactl: stopped; where it stood is not saved (the run directory is not seen by a, b)." in told


@pytest.mark.beside
@pytest.mark.slow
@pytest.mark.parametrize("containers", ["shared"], indirect=True)
def test_a_launcher_that_gets_sigterm_saves_and_the_next_one_goes_on(
    launcher: Launcher, containers: Containers
) -> None:
    """As when its pod is evicted, and its Job starts another one."""
    launched = launcher.start("mode=gba", *reached(containers), *LONG)
    launched.training()
    launched.process.send_signal(signal.SIGTERM)
    done = launched.finish(40)
    stopped = done.result["stopped"]
    assert done.code == 143 and stopped["state"] == "saved", done.err
    typed = [each for each in reached(containers) if not each.startswith(("cluster.hosts", "cluster=exec"))]
    again = launcher.start(f"resume={done.run_dir}", f"run_dir={done.run_dir}", *typed, small=False).finish()
    again.run_dir = done.run_dir
    assert again.accounted(180_000).result["checkpoint"]["resumed_at"] == stopped["step"] > 0


def examined(launcher: Launcher, engine: str) -> None:
    """See that gbactl doctor finds both nodes of the engine's cluster, and no fault."""
    asked = launcher.gbactl("doctor", *ENGINES[engine], "--json")
    assert asked.returncode == 0, asked.stdout + asked.stderr
    found = {check["name"]: check["ok"] for check in json.loads(asked.stdout)["checks"]}
    assert found["host n1"] and found["host n2"] and "note" not in found, asked.stdout


@pytest.mark.beside
def test_slurm_places_the_processes(allocated: Launcher, slurm: SlurmCluster) -> None:
    done = allocated.start("mode=sync", *ENGINES["slurm"]).finish()
    assert done.code == 0, done.err
    assert "n1    127.0.0.1" in done.err and "n2    127.0.0.1" in done.err and "--no-kill" not in done.err
    examined(allocated, "slurm")
    config = (done.run_dir / "config.yaml").read_text()
    assert "n1:1" in config and "n2:1" in config
    wait_for(lambda: slurm.ask("squeue", "-h") == "", 20)


@pytest.mark.beside
@pytest.mark.slow
def test_slurm_s_lost_node_comes_back_and_changes_nothing(slurm: SlurmCluster, allocated: Launcher) -> None:
    launched = allocated.start("mode=gba", *ENGINES["slurm"], *LONG, *PACKED)
    launched.training()
    slurm.lose("n2")
    slurm.recover("n2")
    done = launched.finish().accounted(180_000)
    assert "Host n2 is gone" in done.err and [each["process"] for each in done.result["recovery"]] == ["W1"]
    slurm.idle()


@pytest.mark.beside
@pytest.mark.slow
def test_slurm_loses_a_node_before_the_agents_start(slurm: SlurmCluster, allocated: Launcher, tmp_path: Path) -> None:
    here, go = tmp_path / "here", tmp_path / "go"
    waiting = f'touch {here}; while [ ! -e {go} ]; do sleep 0.1; done; exec "$@"'
    allocated.before = (*allocated.before, "sh", "-c", waiting, "sh")
    launched = allocated.start("mode=gba", *ENGINES["slurm"])
    wait_for(here.exists)
    slurm.lose("n2")
    go.touch()
    done = launched.finish()
    slurm.recover("n2")
    why = (
        r"gbactl: Host n2 cannot be reached \(srun: error: Unable to create step for job \d+: Requested node .+\); see "
    )
    assert done.code == 1 and re.match(why, done.err.splitlines()[-1])
    slurm.idle()


@pytest.mark.beside
@pytest.mark.slow
def test_a_run_goes_on_while_slurm_s_controller_is_dead(slurm: SlurmCluster, allocated: Launcher) -> None:
    launched = allocated.start("mode=gba", *ENGINES["slurm"], *LONG)
    launched.training()
    slurm.kill("slurmctld")
    wait_for((launched.run_dir / "result.json").exists)
    slurm.controller()
    assert launched.finish().accounted(180_000).result.get("recovery", []) == []
    slurm.idle()


@pytest.mark.beside
@pytest.mark.slow
def test_two_jobs_share_the_nodes(slurm: SlurmCluster, allocated: Launcher) -> None:
    jobs = [allocated.start("mode=sync", *ENGINES["slurm"], "cluster.pin=off", "data.days=3") for _ in range(2)]
    for job in jobs:
        job.training()
    assert slurm.ask("squeue", "-h", "-o", "%N").split() == ["n[1-2]"] * 2
    first, second = (job.finish().accounted(8_000).result["checksums"] for job in jobs)
    assert first == second


@pytest.mark.beside
@pytest.mark.slow
def test_an_allocation_without_no_kill_is_warned_of(allocated: Launcher) -> None:
    allocated.before = ("salloc", "-Q", "-N2", "-n2")
    done = allocated.start("mode=gba", *ENGINES["slurm"]).finish().accounted(4_000)
    assert "Warning: this allocation seems to be without --no-kill" in done.err


@pytest.mark.quick(1)
@pytest.mark.beside
@pytest.mark.parametrize("mode", ["gba", "async"])
def test_ray_places_the_processes_and_none_of_them_loads_it(launcher: Launcher, ray: RayCluster, mode: str) -> None:
    launched = launcher.start(f"mode={mode}", *ENGINES["ray"], "data.rows_per_day=20000")
    pids = [launched.process.pid, *(launched.node(name) for name in ("C", "S0", "S1", "W0", "W1"))]
    loaded = [Path(f"/proc/{pid}/maps").read_text() for pid in pids]
    assert not any(word in maps for maps in loaded for word in ("/ray/", "/grpc"))
    children = psutil.Process(launched.process.pid).children()
    drivers = [Path(f"/proc/{each.pid}/maps").read_text() for each in children if "gbactl.engine.ray" in each.cmdline()]
    assert len(drivers) == 2 and all("/ray/" in maps and "/grpc" not in maps for maps in drivers)
    done = launched.finish()
    assert done.code == 0, done.err
    assert "\nn1    " in done.err and "\nn2    " in done.err
    assert done.result["samples"]["trained"] + done.result["samples"]["decayed"] == done.result["samples"]["read"]


@pytest.mark.slow
@pytest.mark.parametrize("ray", [(), (AUTOSCALER,)], indirect=True, ids=["joined", "autoscaled"])
def test_the_processes_of_a_ray_node_that_is_lost_go_on_elsewhere(
    launcher: Launcher, ray: RayCluster, request: pytest.FixtureRequest
) -> None:
    """Until there is another node: one that joins by itself, or that Ray starts as the run asks for its CPUs."""
    more = ("data.days=24", "model.hidden=[512,512]", "cluster.start_timeout=100")
    launched = launcher.start("mode=gba", *ENGINES["ray"], *LONG, *PACKED, *more)
    launched.training()

    def successors() -> int:
        return sum(path.stat().st_size > 0 for path in (launched.run_dir / "logs").glob("W1-*.log"))

    ray.ask("remove n2")
    wait_for(lambda: successors() >= 1)
    if "joined" in request.node.name:
        ray.ask("add n3")
    wait_for(lambda: successors() == 2 or launched.process.poll() is not None)
    launched.process.send_signal(signal.SIGTERM)
    done = launched.finish()
    assert "Host n2 is gone" in done.err and "Host n2 is there again; it gets W1." in done.err, done.err


@pytest.mark.slow
def test_a_run_outlives_ray_s_head_by_a_minute(launcher: Launcher, ray: RayCluster) -> None:
    """Then Ray ends its other nodes. The run's last sentence says how to resume it, and its checkpoints are good."""
    examined(launcher, "ray")
    saved = ("checkpoint=full", "checkpoint.interval_steps=50", "model.hidden=[512,512]")
    launched = launcher.start("mode=async", *ENGINES["ray"], *LONG, *PACKED, *saved, "data.days=24")
    wait_for(lambda: list(launched.run_dir.glob("checkpoints/*/manifest.json")))
    ray.ask("remove n1")
    done = launched.finish()
    assert done.code == 1 and "Host n1 is gone" in done.err and "Traceback" not in done.err, done.err
    told = (
        r"Every host is gone, n2 because .+; the newest checkpoint is cut-\d+, go on with 'gbactl train resume=\S+'\.$"
    )
    assert re.search(told, done.err.strip()), done.err
    assert "good" in launcher.gbactl("checkpoint", "verify", str(launched.run_dir)).stdout


def submitted(launcher: Launcher, name: str, *typed: str, **variables: str) -> tuple[str, ...]:
    """The arguments of `ray job submit` for a run whose directory has the job's name, in a folder of the user's.

    The folders differ: Ray takes what it uploaded of the same one before, and may delete it meanwhile."""
    run_dir, folder = launcher.cwd / "runs" / name, launcher.cwd / f"work-{name}"
    shutil.copytree(f"{ROOT}/experiments/templates", folder)
    (folder / "name").write_text(name)
    variables |= {"JOB": name, "GBACTL_CACHE": launcher.environment["GBACTL_CACHE"]}
    environment = json.dumps({"env_vars": variables})
    command = ("gbactl", "train", *SMALL, "cluster.bind=127.0.0.1", f"run_dir={run_dir}", "tracking.enabled=false")
    of_user = ("--working-dir", str(folder), "--runtime-env-json", environment)
    return ("--submission-id", name, *of_user, "--", *command, *typed)


def processes_of(name: str) -> list[list[str]]:
    """The command lines of a job's processes that are gbactl's."""
    found = []
    for process in psutil.process_iter(["cmdline", "environ", "status"]):
        each = process.info
        if (each["environ"] or {}).get("JOB") == name and each["status"] != psutil.STATUS_ZOMBIE:
            found += [each["cmdline"]] if any("gbactl" in text for text in each["cmdline"]) else []
    return found


@pytest.mark.slow
@pytest.mark.parametrize("ray", [(JOBS,)], indirect=True)
def test_a_ray_job_has_the_run_s_exit_code_and_the_user_s_files(launcher: Launcher, ray: RayCluster) -> None:
    """The model and its configuration are in the job's working_dir alone."""
    own = ("--config-dir", "click_parts/conf", "model=cross")
    done = ray.job("submit", *submitted(launcher, "well", *own, "mode=gba", "cluster=auto"))
    assert done.returncode == 0 and "'well' succeeded" in done.stdout, done.stdout + done.stderr
    assert "cluster=auto: in a Ray job, so cluster=ray\n" in done.stdout and "\nn2    " in done.stdout
    result = json.loads((launcher.cwd / "runs" / "well" / "result.json").read_text())
    assert result["status"] == "FINISHED" and result["samples"]["read"] == 4_000
    failed = ray.job("submit", *submitted(launcher, "badly", "cluster=ray", "cluster.workers=4"))
    assert failed.returncode == 1 and "do not fit into the 2 slots of cluster.hosts" in failed.stdout
    assert "'badly' failed" in failed.stdout


@pytest.mark.slow
@pytest.mark.parametrize("ray", [(JOBS,)], indirect=True)
def test_a_stopped_ray_job_leaves_its_logs_and_no_process(launcher: Launcher, ray: RayCluster) -> None:
    """With the signal of Ctrl-C and time for it, it leaves a checkpoint, too."""
    patient = {"RAY_JOB_STOP_SIGNAL": "SIGINT", "RAY_JOB_STOP_WAIT_TIME_S": "40"}
    for name, variables in {"stopped": {}, "saved": patient}.items():
        run_dir = launcher.cwd / "runs" / name
        job = submitted(launcher, name, "mode=gba", "cluster=ray", *LONG, "data.days=24", **variables)
        assert ray.job("submit", "--no-wait", *job).returncode == 0
        log = run_dir / "events.log"
        wait_for(lambda log=log: log.exists() and log.stat().st_size > 4_000)
        assert len(processes_of(name)) > 8
        stopped = ray.job("stop", name)
        assert f"'{name}' was stopped" in stopped.stdout, stopped.stdout + stopped.stderr
        wait_for(lambda name=name: not processes_of(name), 20)
        assert log.stat().st_size > 4_000 and all("pid " in path.read_text() for path in run_dir.glob("logs/[SW]?.log"))
    told = json.loads((launcher.cwd / "runs" / "saved" / "result.json").read_text())["stopped"]
    assert (told["signal"], told["state"]) == ("SIGINT", "saved")
    assert f"go on with 'gbactl train resume={launcher.cwd}/runs/saved'" in ray.job("logs", "saved").stdout


# -- batch jobs -------------------------------------------------------------------------------------


@pytest.fixture
def submitter(allocated: Launcher) -> Launcher:
    """Launcher on a login node."""
    allocated.before = ()
    return allocated


JOB = ("mode=gba", "cluster=slurm", "cluster.stop_seconds=10", "cluster.slurm.grace=20", "--submit")


@pytest.mark.beside
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_commands_of_the_page(submitter: Launcher) -> None:
    lines = commands("docs/how-to/run-on-a-scheduler.md", "slurm")
    assert [line.split()[0] for line in lines] == ["salloc", "gbactl"]
    for line in lines:
        before, typed = line.split("gbactl train ")
        submitter.before = tuple(before.split())
        small = [each for each in SMALL if not each.startswith("cluster.workers=")]
        done = submitter.start(*small, *typed.split(), small=False).finish(240)
        assert done.code == 0 and "mode gba: 4 workers" in done.err + done.out, f"{line}\n{done.err}"


@pytest.mark.beside
@pytest.mark.slow
def test_a_preempted_job_goes_on_by_itself(slurm: SlurmCluster, submitter: Launcher) -> None:
    launched = submitter.start(*JOB, *LONG)
    launched.training()
    urgent = slurm.ask(
        "sbatch", "--parsable", "-p", "urgent", "-N2", "--exclusive", "-o", "/dev/null", "--wrap", "true"
    )
    done = launched.finish().accounted(180_000)
    assert slurm.ask("scontrol", "show", "job", urgent).count("JobState=COMPLETED") == 1
    assert "is queued again" in done.out and "--no-kill" not in done.out
    stopped = json.loads((launched.run_dir / "result.1.json").read_text())["stopped"]
    assert (stopped["signal"], stopped["state"]) == ("SIGUSR1", "saved")
    assert done.result["checkpoint"]["resumed_at"] == stopped["step"] > 0


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_job_longer_than_its_time_goes_on_by_itself(submitter: Launcher) -> None:
    """A minute is the shortest time that a job can have; the training takes more on any machine."""
    slow = "faults.plans=[{kind: constant, workers: [0, 1], factor: 36}]"
    launched = submitter.start(*JOB, *LONG, slow, "cluster.slurm.sbatch=[time:1]")
    done = launched.finish(500).accounted(180_000)
    assert done.out.count("is queued again") >= 1 and "DUE TO TIME LIMIT" not in done.out


@pytest.mark.beside
@pytest.mark.slow
def test_a_refused_job_and_a_cancelled_one(slurm: SlurmCluster, submitter: Launcher) -> None:
    refused = submitter.start(*JOB, "cluster.slurm.sbatch=[partition:no]").finish()
    assert refused.code == 1 and "Slurm refuses the job: Batch job submission failed: Invalid part" in refused.err
    launched = submitter.start(*JOB, *LONG)
    launched.training()
    launched.process.send_signal(signal.SIGINT)
    left = launched.finish()
    assert left.code == 130
    job = re.search(r"job (\d+) goes on; .*'(scancel -b -s TERM \d+)' saves and ends it", left.err)
    assert job is not None and slurm.ask("squeue", "-h", "-j", job[1], "-o", "%T") == "RUNNING"
    slurm.ask(*job[2].split())
    wait_for(lambda: slurm.ask("squeue", "-h") == "")
    assert (
        left.result["stopped"]["state"] == "saved" and "is queued again" not in (left.run_dir / "job.log").read_text()
    )


@pytest.mark.beside
@pytest.mark.slow
def test_a_job_whose_first_node_is_lost_goes_on_from_a_checkpoint(slurm: SlurmCluster, submitter: Launcher) -> None:
    """The launcher and the coordinator ran there."""
    launched = submitter.start(*JOB, *LONG, *SAVED)
    launched.training()
    wait_for(lambda: (launched.run_dir / "checkpoints").is_dir() and list(launched.run_dir.glob("checkpoints/cut-*")))
    slurm.lose("n1")
    wait_for(lambda: slurm.ask("squeue", "-h", "-o", "%T") == "PENDING", 30)
    slurm.recover("n1")
    done = launched.finish().accounted(180_000)
    assert (launched.run_dir / "logs.1").is_dir() and "has lost the node of its launcher; job" in done.err
    assert done.result["checkpoint"]["resumed_at"] > 0


@pytest.mark.beside
@pytest.mark.slow
def test_a_sweep_is_an_array_of_jobs(slurm: SlurmCluster, submitter: Launcher) -> None:
    pytest.importorskip("hydra_plugins.hydra_submitit_launcher", reason="the extra gbactl[submitit] is not installed")
    launcher = ("hydra/launcher=submitit_slurm", "hydra.launcher.timeout_min=3", "hydra.launcher.cpus_per_task=1")
    sweep = submitter.begin(
        "train", "-m", *SMALL, "mode=gba", "seed=1,2", "tracking.enabled=false", *launcher,
        SLURM_CONF=slurm.environment["SLURM_CONF"],
    )  # fmt: skip
    _, err = sweep.communicate(timeout=SECONDS)
    assert sweep.returncode == 0, err
    results = [json.loads(path.read_text()) for path in submitter.cwd.glob("runs/*/result.json")]
    assert sorted((each["seed"], each["status"]) for each in results) == [(1, "FINISHED"), (2, "FINISHED")]
    jobs = re.findall(r" ArrayJobId=(\d+) ArrayTaskId=(\d+) ", slurm.ask("scontrol", "-o", "show", "job"))
    assert len({job for job, _ in jobs}) == 1 and sorted(task for _, task in jobs) == ["0", "1"], jobs
