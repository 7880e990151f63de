"""Simulations for an advice, one per process: train a base, train on from it in a mode, predict a mode's EPS.

A job's configuration is that of a run on the virtual cluster. Its folder under the advice's directory keeps
configuration, event log and result. The schedule runs some seeds of all modes, then more seeds of the modes that may be
recommended. The jobs run in processes that end with this process, however it ends; their start takes the import of
torch (3 s), once.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import shutil
import signal
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any

from gbactl import __version__
from gbactl.advise.data_subset import DataSubset
from gbactl.atomic_files import plain, write_result
from gbactl.checkpoint.costs_and_interval import CheckpointConfig
from gbactl.checkpoint.folder import CHECKPOINTS, CheckpointFolder
from gbactl.config import RunConfig, check
from gbactl.data.dataset import Dataset
from gbactl.engine.stop_signals import deferred, raise_if_stopped
from gbactl.errors import ClusterError, DivergedError
from gbactl.faults.fault_plan import FaultsConfig
from gbactl.launch import run_dir as run_dirs
from gbactl.launch.hydra_config import mode_file
from gbactl.nodes.child_main import die_with_parent
from gbactl.simulation.simulated_run import ZeroComputeCluster, run_virtual
from gbactl.wire.messages import Event


def on_virtual_cluster(cfg: RunConfig) -> RunConfig:
    """Return the configuration on the virtual cluster, whatever cluster was configured. Raises ConfigError.

    Checkpoints are left out unless the fault plan kills or stops processes. Evaluations within a day are left out: each
    would end a phase, and the phases are the parts of an advice."""
    checkpoint = cfg.checkpoint if cfg.fault_plan().has_failures else CheckpointConfig()
    cluster, train = replace(cfg.cluster, name="virtual", options={}), replace(cfg.train, eval_every=None)
    return check(replace(cfg, cluster=cluster, train=train, checkpoint=checkpoint))


def in_mode(cfg: RunConfig, mode: str) -> RunConfig:
    """Return the configuration in another mode, with that mode's defaults. Raises ConfigError."""
    return cfg if mode == cfg.mode.name else check(cfg.in_mode({"name": mode, **mode_file(mode)}))


def base_config(cfg: RunConfig, folder: Path, parts: int) -> RunConfig:
    """Return the configuration that trains a base on `parts` parts and saves it; `cfg`: one in the base's mode."""
    saved = CheckpointConfig(name="full", mb_per_second=0)
    train = replace(cfg.train, epochs=1, patience=0, days=parts, max_eval_samples=cfg.train.eval_batch)
    return replace(cfg, run_dir=str(folder), train=train, checkpoint=saved, faults=FaultsConfig())


def mode_config(cfg: RunConfig, folder: Path, base: Path | None) -> RunConfig:
    """Return the configuration of a simulation that resumes from the base in folder `base` (None: new training)."""
    train = replace(cfg.train, epochs=1, patience=0, days=None, max_eval_samples=None)
    return replace(cfg, run_dir=str(folder), train=train, resume=None if base is None else str(base_checkpoint(base)))


def base_checkpoint(base: Path) -> Path:
    """Return the last checkpoint of the base in folder `base`."""
    folder = CheckpointFolder(base / CHECKPOINTS)
    return folder.path / folder.names()[-1]


@dataclass(frozen=True)
class SimulationSeconds:
    """CPU seconds of a simulation: to predict the mode's EPS, to set up, and to train and evaluate.

    They hardly depend on what else the machine does. `wall`: all real seconds."""

    timing: float
    setting_up: float
    training: float
    wall: float = 0.0

    @property
    def total(self) -> float:
        """All seconds together."""
        return self.timing + self.setting_up + self.training


@dataclass(frozen=True)
class Outcome:
    """Outcome of one simulation: its mode and seed, predicted EPS, and the result's fields.

    `parts`: phases after the switch. `diverged`: why it has no result. `global_step`: as of the mode's policy."""

    mode: str
    seed: int
    eps: float
    took: SimulationSeconds
    result: Mapping[str, Any]
    parts: tuple[Mapping[str, Any], ...] = ()
    diverged: str = ""
    global_step: bool = True


def train_base(cfg: RunConfig, subset: DataSubset, folder: Path) -> float:
    """Train and save the base from which all modes of one seed go on; return the CPU seconds. Raises GbactlError."""
    began, dataset = time.process_time(), subset.dataset()
    parts = len(dataset.splits) - 1 - subset.parts
    _run(base_config(cfg, folder, parts), dataset)
    return time.process_time() - began


def simulate(cfg: RunConfig, subset: DataSubset, folder: Path, base: Path | None) -> Outcome:
    """Predict a mode's EPS, then train in it, from a base or else from initial parameters. Raises GbactlError."""
    clock, began = time.monotonic(), time.process_time()
    eps = predicted_eps(cfg, subset, folder)
    timing, began = time.process_time() - began, time.process_time()
    dataset = subset.dataset()
    own = mode_config(cfg, folder, base)
    try:
        result, setting_up = _run(own, dataset)
    except DivergedError as error:
        took = SimulationSeconds(timing, 0.0, time.process_time() - began, time.monotonic() - clock)
        return Outcome(cfg.mode.name, cfg.seed, eps, took, {}, diverged=str(error))
    took = SimulationSeconds(timing, setting_up, time.process_time() - began - setting_up, time.monotonic() - clock)
    parts, global_step = tuple(result["phases"][-subset.parts :]), cfg.mode.policy.global_step
    return Outcome(cfg.mode.name, cfg.seed, eps, took, result, parts, global_step=global_step)


def predicted_eps(cfg: RunConfig, subset: DataSubset, folder: Path) -> float:
    """Predict the EPS of a configuration by a simulation without gradients."""
    scratch = folder / "timing"
    scratch.mkdir(parents=True, exist_ok=True)
    train = replace(cfg.train, epochs=1, patience=0, days=None, checksum_every=0)
    try:
        return float(ZeroComputeCluster(replace(cfg, train=train), subset.timed_dataset(), scratch).run()["eps"])
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _run(cfg: RunConfig, dataset: Dataset) -> tuple[dict[str, Any], float]:
    """Run a simulation in its folder; return its result, and the CPU seconds until its first gradient."""
    began, clock, first = time.process_time(), time.monotonic(), dict[str, float]()

    def listen(event: Event) -> None:
        first.setdefault(event.name, time.process_time() - began)

    run_dir = run_dirs.create(cfg)
    fields = run_virtual(cfg, dataset, run_dir, listen)
    result = plain({
        **fields, "seed": cfg.seed, "status": "FINISHED", "clock": cfg.engine.clock, "run_dir": str(run_dir),
        "wall_seconds": time.monotonic() - clock, "gbactl": __version__,
    })  # fmt: skip
    write_result(run_dir, result)
    return result, first["progress"]


FEWEST_SEEDS, MOST_SEEDS = 3, 16  # of the modes that matter; all modes have the first; unless the user says how many
AHEAD = 2  # bases that are begun before it is known which modes matter
LOOK_SECONDS = 1.0


def _begin(parent: int) -> None:
    """Initialize a process for simulations: it ignores Ctrl-C, and is killed when process `parent` ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    die_with_parent(parent)
    importlib.import_module("sklearn.metrics")


class SimulationPool:
    """Pool of `jobs` processes for simulations; a context manager that kills them if its block raises an error."""

    def __init__(self, jobs: int) -> None:
        self.jobs = jobs
        self._before = set(multiprocessing.active_children())
        context = multiprocessing.get_context("spawn")
        self._pool = ProcessPoolExecutor(jobs, context, initializer=_begin, initargs=(os.getpid(),))

    def __enter__(self) -> SimulationPool:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if kind is not None:
            for child in set(multiprocessing.active_children()) - self._before:
                child.kill()
        self._pool.shutdown(cancel_futures=True)

    def submit(self, call: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Queue a call for one of the processes. Raises Stopped after a signal.

        The first call starts the processes: a signal during their start would leave them with half of their input."""
        with deferred():
            return self._pool.submit(call, *arguments)

    def first_done(self, futures: Iterable[Future[Any]]) -> set[Future[Any]]:
        """Wait until at least one call is done, and return all that are. Raises Stopped after a signal."""
        waiting = list(futures)
        while not (done := wait(waiting, LOOK_SECONDS, FIRST_COMPLETED).done):
            raise_if_stopped()
        return done

    def all_of(self, calls: Mapping[Any, tuple[Any, ...]]) -> dict[Any, Any]:
        """Run calls (function, arguments ...) and return their results by key. Re-raises an error of a call."""
        futures = {self.submit(*call): key for key, call in calls.items()}
        found: dict[Any, Any] = {}
        while len(found) < len(futures):
            left = [future for future, key in futures.items() if key not in found]
            found |= {futures[future]: result_of(future) for future in self.first_done(left)}
        return {key: found[key] for key in calls}


def result_of(future: Future[Any]) -> Any:
    """Return a finished call's result, or raise the call's error. Raises ClusterError if its process died."""
    try:
        return future.result()
    except BrokenProcessPool as error:
        raise ClusterError(
            "A process with a simulation died, as happens where memory is short; type --jobs 1, or a smaller model."
        ) from error


@dataclass(frozen=True)
class Work:
    """Simulation of a mode ("": of the base) with its seed, its estimated seconds, and the time of its start."""

    seed: int
    mode: str
    seconds: float
    began: float = 0.0


@dataclass
class Schedule:
    """Scheduler of simulations, seed by seed: train a base, then modes from it; further seeds as far as time allows.

    The first seed has all modes, the others have those that `narrow` chooses from the outcomes so far; where it chooses
    none, all modes have FEWEST_SEEDS seeds. Bases are trained ahead, while the first seed's modes are simulated.

    `modes`: configurations by mode, the first one is the base's; `base_seconds`, `seconds`: estimates of a simulation
    of the base and of each mode; `deadline`: by time.monotonic(); `seeds`: how many, each with all modes, None: as the
    time allows; `on_outcome` hears of each outcome."""

    pool: SimulationPool
    modes: Mapping[str, RunConfig]
    subset: DataSubset
    folder: Path
    base_seconds: float
    seconds: Mapping[str, float]
    deadline: float
    seeds: int | None
    on_outcome: Callable[[Outcome], None]
    narrow: Callable[[Sequence[Outcome]], Sequence[str]]
    outcomes: list[Outcome] = field(default_factory=list)
    _seeds_begun: int = 0
    _trained_seeds: set[int] = field(default_factory=set)  # seeds with a base, whose modes are not chosen yet
    _queued: deque[Work] = field(default_factory=deque)
    _running: dict[Future[Any], Work] = field(default_factory=dict)
    _finished_seconds: tuple[float, float] = (0.0, 0.0)  # seconds of finished simulations: estimated, taken

    def run(self) -> list[Outcome]:
        """Run all simulations. Raises GbactlError."""
        reported = 0
        while True:
            while len(self._running) < self.pool.jobs and (work := self._next()) is not None:
                self._running[self._submit(work)] = replace(work, began=time.monotonic())
            for outcome in self.outcomes[reported:]:  # while the processes have work again
                self.on_outcome(outcome)
            reported = len(self.outcomes)
            if not self._running:
                return self.outcomes
            for future in self.pool.first_done(self._running):
                self._ended(self._running.pop(future), result_of(future))

    def _next(self) -> Work | None:
        if not self._queued and self._trained_seeds and (modes := self._modes_of(seed := min(self._trained_seeds))):
            self._trained_seeds.remove(seed)
            self._queued += [Work(seed, mode, self.seconds[mode]) for mode in modes]
        if self._queued:
            return self._queued.popleft()
        if not self._may_begin():
            return None
        self._seeds_begun += 1
        return Work(self._first + self._seeds_begun - 1, "", self.base_seconds)

    @property
    def _first(self) -> int:
        return next(iter(self.modes.values())).seed

    def _modes_of(self, seed: int) -> Sequence[str]:
        """Return the modes to simulate with a seed; empty if that is not known yet, or none is needed."""
        every = list(self.modes)
        if self.seeds is not None or seed == self._first:
            return every
        if sum(each.seed == self._first for each in self.outcomes) < len(every):
            return ()
        return self.narrow(self.outcomes) or (every if seed < self._first + FEWEST_SEEDS else ())

    def _may_begin(self) -> bool:
        """Whether to begin a further base: its seed is needed, no base waits, and its simulations end in time."""
        if self.seeds is not None:
            return self._seeds_begun < self.seeds
        if self._seeds_begun < AHEAD:
            return True
        modes = self._modes_of(self._first + self._seeds_begun)
        if self._trained_seeds or self._seeds_begun >= MOST_SEEDS or not modes:
            return False
        if self._seeds_begun < FEWEST_SEEDS:
            return True
        estimated, taken = self._finished_seconds
        pace = taken / estimated if estimated else 1.0
        left = sum(work.seconds + (0 if work.mode else self._total(modes)) for work in self._running.values())
        needed = pace * (left + self.base_seconds + self._total(modes)) / self.pool.jobs
        return time.monotonic() + needed <= self.deadline

    def _total(self, modes: Iterable[str]) -> float:
        return sum(self.seconds[mode] for mode in modes)

    def _submit(self, work: Work) -> Future[Any]:
        cfg = replace(self.modes[work.mode] if work.mode else next(iter(self.modes.values())), seed=work.seed)
        base = self.folder / f"base-s{work.seed}"
        if not work.mode:
            return self.pool.submit(train_base, cfg, self.subset, base)
        return self.pool.submit(simulate, cfg, self.subset, self.folder / f"{work.mode}-s{work.seed}", base)

    def _ended(self, work: Work, found: Any) -> None:
        if isinstance(found, Outcome):
            self.outcomes.append(found)
        else:
            self._trained_seeds.add(work.seed)
        self._finished_seconds = (
            self._finished_seconds[0] + work.seconds,
            self._finished_seconds[1] + time.monotonic() - work.began,
        )
