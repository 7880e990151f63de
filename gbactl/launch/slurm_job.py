"""Run as a batch job of Slurm: `gbactl train --submit` submits and follows it; it is requeued at its time limit.

The batch script is kept in the run's directory. Slurm sends SIGUSR1 before the job's time ends (sbatch --signal): the
run is saved, and the job queued again. A job that Slurm has started before goes on with the run that its earlier start
has left in run_dir=, from the newest checkpoint, or from the beginning where there is none.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from gbactl.conf_catalogue import as_override
from gbactl.engine.slurm import error_text, run_slurm
from gbactl.errors import ClusterError, Stopped, UsageError, require

SCRIPT, OUTPUT = "job.sh", "job.log"
LOOK_SECONDS, ASK_SECONDS = 0.5, 2.0
LINES = (
    "--job-name=gbactl", "--nodes={nodes}", "--ntasks-per-node={tasks}", "--no-kill", "--requeue",
    "--open-mode=append", '--output="{output}"', "--signal=B:USR1@{grace}",
)  # fmt: skip


def submit(overrides: Sequence[str], more: Sequence[str] = ()) -> None:
    """Write a run's batch script into its directory, submit it, and print the job's output until its end.

    `more`: options of gbactl train that the job has too. Raises UsageError, and ClusterError for a refused submission
    or a run that fails."""
    from gbactl.atomic_files import read_result

    run, script = _write(list(overrides), more)
    before, job = read_result(run), FollowedJob(script, run / OUTPUT)
    job.say(f"is submitted; its script, output and run are in {run}")
    cancelled = False
    while True:
        try:
            job.follow()
            break
        except KeyboardInterrupt:
            if cancelled or not _wants_to_cancel(job.number):
                end = f"'scancel -b -s TERM {job.number}' saves and ends it"
                outcome = f"job {job.number} goes on; its output is in {run / OUTPUT}; {end}"
                raise Stopped(signal.SIGINT, outcome) from None
            cancelled = True
            job.cancel()
    after = read_result(run)
    if after == before or after.get("status") != "FINISHED":
        how = "was cancelled" if cancelled else "has ended, and its run has not finished"
        raise ClusterError(f"Job {job.number} {how}; its output is in {run / OUTPUT}.")


def _wants_to_cancel(job: str) -> bool:
    """Ask at a terminal whether to cancel the job; another Ctrl-C, or no terminal, means no."""
    import click

    with contextlib.suppress(click.Abort):
        return sys.stdin.isatty() and click.confirm(f"\nCancel job {job}?", err=True)
    return False


class FollowedJob:
    """Batch job that this process submits, and whose output it prints. Raises ClusterError if Slurm refuses it."""

    def __init__(self, script: Path, output: Path) -> None:
        self.output, self._printed = output, output.stat().st_size if output.exists() else 0
        done = run_slurm("sbatch", "--parsable", str(script))
        if done.returncode:
            raise ClusterError(f"Slurm refuses the job: {error_text(done)}. Its script is {script}.")
        self.number = done.stdout.strip().partition(";")[0]
        self._state = ""

    def say(self, text: str) -> None:
        """Print a line about the job."""
        print(f"job {self.number} {text}", file=sys.stderr, flush=True)

    def follow(self) -> None:
        """Print output and changes of state until Slurm no longer lists the job, however often it is queued again."""
        while state := self._asked():
            if state != self._state:
                self._state = state
                self.say(f"is {state}")
                if self._headless():
                    self.say(f"has lost the node of its launcher; {_queue_again(self.number)}")
            until = time.monotonic() + ASK_SECONDS
            while time.monotonic() < until:
                self._print()
                time.sleep(LOOK_SECONDS)
        self._print()

    def _asked(self) -> str:
        """Return the job's state, and its nodes or what it waits for; "" if it has ended."""
        done = run_slurm("squeue", "-h", "-j", self.number, "-o", "%T %R")
        if done.returncode:
            return "" if "Invalid job id" in done.stderr else f"in an unknown state: {error_text(done)}"
        state, _, where = done.stdout.strip().partition(" ")
        return f"{state.lower()} {where.removeprefix('(None)')}".strip()  # no reason yet

    def _headless(self) -> bool:
        """Return whether the job has lost the node of its batch script; it then keeps the others and does nothing."""
        first, _, nodes = run_slurm("squeue", "-h", "-j", self.number, "-o", "%B %N").stdout.strip().partition(" ")
        left = run_slurm("scontrol", "show", "hostnames", nodes).stdout.split() if nodes else []
        return bool(left) and first not in left

    def _print(self) -> None:
        with contextlib.suppress(OSError), self.output.open("rb") as file:
            file.seek(self._printed)
            data = file.read()
            self._printed += len(data)
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()

    def cancel(self) -> None:
        """Cancel the job if it is still queued, else let it save its run and end."""
        run_slurm("scancel", "--state=PENDING", self.number)
        run_slurm("scancel", "--batch", "--signal=TERM", self.number)


def _write(overrides: list[str], more: Sequence[str]) -> tuple[Path, Path]:
    """Check the run's configuration, and write its batch script; returns run directory and script."""
    from omegaconf import OmegaConf

    from gbactl.checked_dataclasses import build
    from gbactl.coordinator.state import config_at
    from gbactl.engine.slurm import JobOptions
    from gbactl.launch import run_dir as run_dirs
    from gbactl.launch.hydra_config import CONFIG_DIR, compose, composed
    from gbactl.launch.resume import find, named, run_of

    if any(text.startswith("-") and text.partition("=")[0] not in CONFIG_DIR for text in overrides):
        raise UsageError("--submit submits one run; for a sweep, type -m hydra/launcher=submitit_slurm instead.")
    cluster, given = composed(overrides).cluster, named(overrides)
    if cluster.get("slurm") is None:
        raise UsageError("--submit submits a job of Slurm; type cluster=slurm.")
    options = OmegaConf.to_container(cluster.slurm)
    assert isinstance(options, dict)
    job = build(JobOptions, {str(key): value for key, value in options.items()}, "cluster.slurm.")
    workers = cluster.workers
    if not isinstance(workers, int):
        workers = 1 if given is None else config_at(find(given))["cluster"]["workers"]
    tasks = job.tasks or max(1, -(-workers // job.nodes))
    # what its nodes are called, and how they are reached, is known in the job
    cfg = compose([*overrides, f"cluster.hosts=[{','.join(f'node{n}:{tasks}' for n in range(job.nodes))}]"])
    least = cfg.cluster.stop_seconds
    require(
        job.grace >= least, f"cluster.slurm.grace={job.grace} ends before the run is saved; type at least {least:g}."
    )
    if given is None:
        run = run_dirs.new_path(cfg)
    elif cfg.run_dir is None:
        run = run_of(find(given))
    else:
        run = Path(cfg.run_dir)
    run.mkdir(parents=True, exist_ok=True)
    # one that is typed may have ${KEY} in it, for which the restarted job has no value
    place = f"run_dir={as_override(str(run))}"
    typed = [place if text.startswith("run_dir=") else text for text in overrides]
    typed += [] if place in typed else [place]
    output = str(run.resolve() / OUTPUT).replace("%", "%%")
    lines = [each.format(nodes=job.nodes, tasks=tasks, output=output, grace=job.grace) for each in LINES]
    lines += [f"--{each.replace(':', '=', 1)}" for each in job.sbatch]
    command = shlex.join([sys.executable, "-m", "gbactl", "train", *typed, *more])
    script = run / SCRIPT
    script.write_text(
        "".join([
            "#!/bin/sh\n", *(f"#SBATCH {line}\n" for line in lines),
            f"cd {shlex.quote(os.getcwd())} && exec {command}\n",
        ])
    )  # fmt: skip
    return run.resolve(), script


# -- within the job ---------------------------------------------------------------------------------


@contextlib.contextmanager
def requeued(overrides: list[str]) -> Iterator[list[str]]:
    """Context of a training run, perhaps in a requeued batch job; yields the overrides to begin or resume it with.

    SIGUSR1 raises Stopped, where the training does not handle it by itself; then the job is queued again."""
    typed = dict(text.split("=", 1) for text in overrides if "=" in text)
    if "SLURM_JOB_ID" not in os.environ or "run_dir" not in typed:
        yield overrides
        return
    from gbactl.atomic_files import read_result
    from gbactl.engine.stop_signals import NOTHING, stop_at_once

    run, restarted = Path(typed["run_dir"].strip("'\"")), os.environ.get("SLURM_RESTART_COUNT", "0") != "0"
    signal.signal(signal.SIGUSR1, stop_at_once)
    try:
        yield _continued(run, overrides) if restarted else overrides
    except Stopped as stopped:
        if stopped.number == signal.SIGUSR1 and read_result(run).get("status") != "FINISHED":
            job = os.environ["SLURM_JOB_ID"]
            in_vain = restarted and stopped.outcome in ("", NOTHING)  # it could go on so for ever
            if in_vain:
                again = f"job {job} is not queued again; give it more time"
            else:  # said first, as Slurm may end this process with the requeue
                print(f"gbactl: {stopped.outcome or 'stopped'}; job {job} is queued again", file=sys.stderr, flush=True)
                again = _queue_again(job)
            stopped.outcome = "; ".join(filter(None, (stopped.outcome, again)))
        raise


def _continued(run: Path, overrides: list[str]) -> list[str]:
    """Return the overrides with which a restarted job resumes its run, or begins it again without a checkpoint."""
    from gbactl.checkpoint.folder import CHECKPOINTS, CheckpointFolder
    from gbactl.configured_classes import GROUPS
    from gbactl.launch.hydra_config import CONFIG_DIR
    from gbactl.launch.resume import COMMANDS, TARGET, overridden_key
    from gbactl.launch.run_dir import set_aside
    from gbactl.launch.sweep_parent_run import SEARCH_PATH

    if not CheckpointFolder(run / CHECKPOINTS).names():
        set_aside(run)
        return overrides
    # what says which code runs is taken from no run, only from what is typed beside resume=
    kept = {*COMMANDS, *(f"{group}.{TARGET}" for group in GROUPS), SEARCH_PATH.rstrip("="), *CONFIG_DIR}
    pairs = zip(["", *overrides], overrides, strict=False)
    code = [text for last, text in pairs if overridden_key(text) in kept or last in CONFIG_DIR]
    return [f"resume={as_override(str(run))}", *code]


def _queue_again(job: str) -> str:
    done = run_slurm("scontrol", "requeue", job)
    return f"job {job} is not queued again ({error_text(done)})" if done.returncode else f"job {job} is queued again"
