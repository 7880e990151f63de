"""A run as a batch job of Slurm, whose commands are replaced by scripts here; the real ones are in test_engines.py."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gbactl.config import to_dict
from gbactl.errors import ClusterError, ConfigError, Stopped, UsageError
from gbactl.launch import slurm_job
from gbactl.launch.hydra_config import compose
from gbactl.launch.resume import find
from gbactl.launch.slurm_job import requeued, submit
from tests.support.checkpoint_files import POSITION, save, shards_of

RUN = ("cluster=slurm", "mode=gba", "cluster.workers=4", "run_dir=run")
# of squeue: the node of the batch script, and all nodes
FIRST = 'case "$*" in *%B*) echo n1 n[1-2]; exit;; esac\n'
Commands = Callable[..., Path]


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Commands:
    """Replaces Slurm's commands by shell scripts; returns the file to which each writes its arguments."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(slurm_job, "ASK_SECONDS", 0.0)
    (tmp_path / "bin").mkdir()

    def make(**bodies: str) -> Path:
        for name, body in bodies.items():
            path = tmp_path / "bin" / name
            path.write_text(f'#!/bin/sh\necho {name} "$@" >> {tmp_path}/calls\n{body}\n')
            path.chmod(0o755)
        return tmp_path / "calls"

    return make


def finished(status: str = "FINISHED") -> str:
    """Body of a squeue whose job has written its output and result when it is asked for the second time."""
    told = json.dumps({"status": status})
    asked = f"{FIRST}[ -e asked ] || {{ : > asked; echo RUNNING n1; exit; }}"
    return f"{asked}\necho the end > run/job.log; echo '{told}' > run/result.json"


def test_a_run_is_submitted_and_followed(commands: Commands, capfd: pytest.CaptureFixture[str]) -> None:
    waits = f"{FIRST}[ -e waits ] || {{ : > waits; echo 'PENDING (None)'; exit; }}\n"
    calls = commands(sbatch="echo '7;here'", squeue=waits + finished(), scontrol="echo n1; echo n2")
    Path("own").mkdir()
    own = ("--config-dir", "own", "cluster.slurm.nodes=2", "cluster.slurm.sbatch=[time:5,exclusive]")
    submit([*RUN[:3], "run_dir=${oc.decode:run}", *own], ["--json"])
    script = Path("run/job.sh").read_text()
    assert "--nodes=2\n#SBATCH --ntasks-per-node=2\n#SBATCH --no-kill\n#SBATCH --requeue\n" in script
    assert "#SBATCH --signal=B:USR1@60\n#SBATCH --time=5\n#SBATCH --exclusive\ncd " in script
    typed = "--config-dir own cluster.slurm.nodes=2 'cluster.slurm.sbatch=[time:5,exclusive]'"
    assert script.endswith(f" run_dir=run {typed} --json\n")
    assert subprocess.run(["/bin/sh", "-n", "run/job.sh"], check=True).returncode == 0
    told = capfd.readouterr()
    assert told.out == "the end\n" and "job 7 is pending\njob 7 is running n1\n" in told.err
    assert calls.read_text().splitlines()[0].startswith("sbatch --parsable ")


def test_a_job_that_goes_on_with_a_run_has_room_for_its_workers(
    commands: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "é (1)").mkdir()
    monkeypatch.chdir(tmp_path / "é (1)")
    commands(sbatch="echo 7", squeue=finished(), scontrol="echo n1")
    config = to_dict(compose([*RUN, "cluster.hosts=[a:2,b:2]", "train.global_batch=64"]))
    position = {**POSITION, "mode": {**config["mode"], "workers": 4}}
    save(Path("run/checkpoints"), shards_of(1), config=config, position=position)
    Path("run/config.yaml").write_text("")
    find.cache_clear()
    submit(["resume=run"])
    script = Path("run/job.sh").read_text()
    assert "--ntasks-per-node=2\n" in script and script.endswith(f""" resume=run 'run_dir="{Path.cwd()}/run"'\n""")


def test_a_run_that_fails_fails_the_command(commands: Commands) -> None:
    commands(sbatch="echo 7", squeue=finished("FAILED"), scontrol="echo n1")
    with pytest.raises(
        ClusterError, match=r"^Job 7 has ended, and its run has not finished; its output is in .*run/job"
    ):
        submit(RUN)


def test_a_job_that_has_lost_the_node_of_its_launcher_is_queued_again(
    commands: Commands, capfd: pytest.CaptureFixture[str]
) -> None:
    calls = commands(sbatch="echo 7", squeue=finished(), scontrol="echo n2")
    submit(RUN)
    assert "job 7 has lost the node of its launcher; job 7 is queued again" in capfd.readouterr().err
    assert "scontrol requeue 7" in calls.read_text()


def test_slurm_refuses_the_job_or_is_not_there(commands: Commands) -> None:
    with pytest.raises(ConfigError, match=r"^Slurm's command sbatch cannot be run \(No such file or directory\)"):
        submit(RUN)
    commands(sbatch="echo 'sbatch: error: Batch job submission failed: Invalid partition name specified' >&2; exit 1")
    with pytest.raises(
        ClusterError, match=r"refuses the job: Batch job submission failed: Invalid partition name spec"
    ):
        submit(RUN)


@pytest.mark.parametrize(
    ("typed", "why"),
    [
        (["-m", *RUN, "seed=1,2"], "submits one run; for a sweep"),
        (["cluster=local"], "type cluster=slurm"),
        ([*RUN, "cluster.slurm.nodes=many"], "cluster.slurm.nodes"),
        ([*RUN, "cluster.slurm.tasks=1"], "cluster.workers=4 do not fit into the 2 slots"),
        ([*RUN, "cluster.slurm.sbatch=[-p]"], "is no NAME:VALUE"),
        ([*RUN, "cluster.slurm.grace=5"], r"type at least 30\."),
        ([*RUN, "mode.iota=x"], "mode.iota"),
    ],
)  # fmt: skip
def test_what_is_not_submitted(commands: Commands, typed: list[str], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        submit(typed)
    assert not Path("run").exists() and not Path("calls").exists()


def test_that_slurm_does_not_answer_is_said_once(commands: Commands, capfd: pytest.CaptureFixture[str]) -> None:
    fail = "echo 'slurm_load_jobs error: Unable to contact slurm controller (connect failure)' >&2; exit 1"
    dead = f"{FIRST}for n in 1 2; do [ -e $n ] || {{ : > $n; {fail}; }}; done\n"
    commands(sbatch="echo 7", squeue=dead + finished(), scontrol="echo n1")
    submit(RUN)
    told = capfd.readouterr()
    assert told.err.count("job 7 is in an unknown state: Unable to contact slurm controller (connect failure)\n") == 1
    assert "job 7 is running n1\n" in told.err and told.out == "the end\n"


class Terminal(io.StringIO):
    """Standard input on a terminal, on which nothing or a line is typed, or Ctrl-C."""

    def isatty(self) -> bool:
        return True

    def readline(self, size: int | None = -1, /) -> str:
        if self.getvalue() == "^C":
            raise KeyboardInterrupt
        return super().readline(size or -1)


@pytest.mark.parametrize("typed", [None, "", "n\n", "^C", "y\n"])
def test_ctrl_c_cancels_the_job_only_if_that_is_wanted(
    commands: Commands, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], typed: str | None
) -> None:
    cancels = typed == "y\n"
    calls = commands(
        sbatch="echo 7", squeue=f"{FIRST}[ -e gone ] || echo RUNNING n1", scontrol="echo n1", scancel=": > gone"
    )
    monkeypatch.setattr(sys, "stdin", io.StringIO() if typed is None else Terminal(typed))
    pressed = iter([KeyboardInterrupt])

    def press(_: float) -> None:
        raise next(pressed)

    monkeypatch.setattr(slurm_job, "ASK_SECONDS", 0.1)
    monkeypatch.setattr(slurm_job.time, "sleep", press)
    if cancels:
        with pytest.raises(ClusterError, match=r"^Job 7 was cancelled"):
            submit(RUN)
    else:
        with pytest.raises(Stopped) as stopped:
            submit(RUN)
        assert stopped.value.outcome.endswith("'scancel -b -s TERM 7' saves and ends it")
    assert ("scancel --batch --signal=TERM 7" in calls.read_text()) is cancels
    assert ("Cancel job 7? [y/N]:" in capfd.readouterr().err) is (typed is not None)


@pytest.fixture
def in_a_job(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Be in a job of Slurm; SIGUSR1's handler is restored afterwards."""
    before = signal.getsignal(signal.SIGUSR1)
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    yield
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.usefixtures("in_a_job")
def test_a_job_whose_time_ends_is_queued_again_unless_its_run_has_finished(commands: Commands) -> None:
    calls = commands(scontrol="")
    with pytest.raises(Stopped) as stopped, requeued([*RUN]) as given:
        assert given == list(RUN)
        os.kill(os.getpid(), signal.SIGUSR1)
    assert stopped.value.outcome == "job 7 is queued again" and calls.read_text() == "scontrol requeue 7\n"
    Path("run").mkdir()
    Path("run/result.json").write_text('{"status": "FINISHED"}')
    with pytest.raises(Stopped), requeued([*RUN]):
        os.kill(os.getpid(), signal.SIGUSR1)
    with pytest.raises(Stopped), requeued([*RUN]):
        raise Stopped(signal.SIGTERM)
    assert len(calls.read_text().splitlines()) == 1


@pytest.mark.usefixtures("in_a_job", "commands")
def test_a_job_that_slurm_starts_again_goes_on_with_its_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    Path("run/logs").mkdir(parents=True)
    Path("run/config.yaml").write_text("")
    code = ["--config-dir", "own", "cluster.python=/opt/python", "++model.target=a.B", "hydra.searchpath=[pkg://a]"]
    typed = [*RUN, *code, "model.layers=3"]
    with requeued(typed) as given:
        assert given == typed and sorted(os.listdir("run")) == ["config.1.yaml", "logs.1"]
    save(Path("run/checkpoints"), shards_of(1))
    with requeued(typed) as given:
        assert given == ["resume=run", *code]
    Path("é (1)").symlink_to("run")
    with requeued(['run_dir="é (1)"']) as given:
        assert given == ['resume="é (1)"']
    with pytest.raises(Stopped) as stopped, requeued(typed):
        os.kill(os.getpid(), signal.SIGUSR1)
    assert stopped.value.outcome == "job 7 is not queued again; give it more time"
