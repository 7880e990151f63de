"""Implementation of `gbactl advise`: probe, simulate, rank, print, log.

Most of the time goes into simulations with gradients; simulations for times alone take a few percent of it. A probe of
each mode tells how large a subset of the data the given time allows for.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gbactl import atomic_files
from gbactl.advise.advice import (
    LEAST_BASE,
    LEAST_STEPS,
    SLOW_DOWNS,
    WORTHWHILE,
    Advice,
    advice_of,
    modes_needing_seeds,
    plain,
    sentence,
)
from gbactl.advise.data_subset import DataSubset, SwitchSplits, choose_subset, has_batches, samples_that_fit
from gbactl.advise.simulation_jobs import (
    FEWEST_SEEDS,
    Outcome,
    Schedule,
    SimulationPool,
    SimulationSeconds,
    in_mode,
    on_virtual_cluster,
    predicted_eps,
    simulate,
)
from gbactl.checkpoint.folder import CHECKPOINTS
from gbactl.conf_catalogue import option_files
from gbactl.config import RunConfig, flatten, to_dict
from gbactl.config.run_config import effective_keys
from gbactl.config.validation import try_policy
from gbactl.engine.preflight import check_memory, check_model
from gbactl.engine.stop_signals import stoppable
from gbactl.errors import ConfigError, Stopped, UsageError
from gbactl.faults.fault_plan import FaultsConfig
from gbactl.host_limits import usable_cores
from gbactl.launch import finished_sweep_cells
from gbactl.launch import run_dir as run_dirs
from gbactl.launch.hydra_config import compose, defaults_of
from gbactl.launch.progress import ProgressDisplay, prepared, unit_of
from gbactl.policies.policy import names
from gbactl.report.text_formats import for_stdout, markdown, on_terminal, render
from gbactl.switching.auto_controller import SYNC
from gbactl.tracking.metrics_and_tags import RUN_DIR, metrics_of, tags_of
from gbactl.tracking.mlflow_store import CELL, COMMAND, NOTE, PARENT, RUN_KIND, tracking_uri
from gbactl.tracking.run_description import CONFIG_TAG, MODE_TAG, CommandLine, config_tag, parameters, run_note
from gbactl.tracking.tracked_run import TrackedRun

CANDIDATES = 3  # modes that are planned for in each seed but the first, which has all modes
PROBE_STEPS = 6  # global batches of the probe
GRADIENTS, TIMED_STEPS = 4000, (20, 50)  # of a simulation for times alone: gradients, least and most global batches
SPARE = 0.9  # share of the time that is planned
RESULT = "advice.json"


@dataclass(frozen=True)
class AdviseOptions:
    """Options of `gbactl advise`. `modes`: names separated by commas; None: all modes without replicas."""

    modes: str | None
    minutes: float
    seeds: int | None
    samples: int | None
    margin: float | None
    jobs: int | None
    form: str

    def words(self) -> list[str]:
        """Return the options that decide what is simulated and advised, as one types them."""
        typed = {name: getattr(self, name) for name in ("modes", "minutes", "seeds", "samples", "margin")}
        return [word for name, value in typed.items() if value is not None for word in (f"--{name}", str(value))]


def default_modes() -> list[str]:
    """List the modes that are simulated unless others are typed: those without replicas, sync first."""
    return sorted(names(lambda mode: mode.home != "replicas"), key=lambda mode: (mode != SYNC, mode))


def advise(overrides: Sequence[str], options: AdviseOptions, out: Callable[[str], None]) -> None:
    """Simulate the modes, rank them and print the advice. Raises GbactlError, and Stopped after a signal."""
    with stoppable("there is no advice yet"):
        Advising(overrides, options, out).run()


class Advising:
    """One run of `gbactl advise`: its configuration, its simulations, its MLflow runs."""

    def __init__(self, overrides: Sequence[str], options: AdviseOptions, out: Callable[[str], None]) -> None:
        self.options, self.out = options, out
        self.show = ProgressDisplay(unit_of("virtual"))
        self.command = CommandLine("advise", (*options.words(), *overrides))
        typed = compose(["tracking.experiment=advise", *overrides])
        if typed.resume is not None or typed.switch.schedule or typed.switch.name != "none":
            raise UsageError("An advice begins with a base of its own; leave resume= and switch= out.")
        self.cfg = on_virtual_cluster(typed)
        self.modes, self.left_out = self._configured()

    def _modes(self) -> list[str]:
        own = self.cfg.mode.name  # which may be of a mode.target, or one with replicas
        if self.options.modes is None:
            return list(dict.fromkeys([*default_modes(), own]))
        typed = [name.strip() for name in self.options.modes.split(",") if name.strip()]
        if unknown := [name for name in typed if name not in {own, *names()}]:
            raise UsageError(f"--modes {unknown[0]} is not known; type some of: {', '.join(names())}.")
        if not {*typed} - {SYNC}:
            raise UsageError(f"--modes names no mode to compare with {SYNC}; type some of: {', '.join(names())}.")
        return list(dict.fromkeys([SYNC, *typed]))

    def _configured(self) -> tuple[dict[str, RunConfig], list[str]]:
        """Configure the modes; leave out, with a note, those that cannot run on this cluster and were not typed."""
        modes, left_out = dict[str, RunConfig](), list[str]()
        for mode in self._modes():
            try:
                modes[mode] = in_mode(self.cfg, mode)
            except ConfigError as error:
                if self.options.modes is not None or mode in (SYNC, self.cfg.mode.name):
                    raise
                left_out.append(f"{mode} is left out: {error}")
        return modes, left_out

    def run(self) -> None:
        """Run all simulations, then print and log the advice. Raises GbactlError."""
        self.dataset = prepared(self.cfg.data, self.show)
        check_model(self.cfg, self.dataset)
        for cfg in self.modes.values():
            try_policy(cfg)
        check_memory(self.cfg, self.dataset)
        self.began = time.monotonic()
        folder = run_dirs.create(replace(self.cfg, run_dir=self.cfg.run_dir or str(run_dirs.unused("advise"))))
        with run_dirs.lock(folder):
            tags = {RUN_KIND: "advice", COMMAND: self.command.text}
            tracked = self._track(folder, f"advice on {self.cfg.cluster.workers} workers", self.cfg, tags)
            try:
                found = self._advice(folder, tracked)
            except BaseException as error:
                self._finish(tracked, "KILLED" if isinstance(error, Stopped) else "FAILED")
                raise
            finally:
                self.show.clear()
                for saved in (*folder.glob("base-s*"), *folder.glob(f"*/{CHECKPOINTS}")):
                    shutil.rmtree(saved, ignore_errors=True)
            self._tell(found, folder, tracked)

    # -- simulations --------------------------------------------------------------------------------

    def _advice(self, folder: Path, tracked: TrackedRun | None) -> Advice:
        options, cores = self.options, usable_cores()
        with SimulationPool(options.jobs or min(cores, len(self.modes))) as pool:
            took = self._probe(pool, folder)
            self.subset = self._subset(took, pool.jobs)
            schedule = self._schedule(pool, folder, took, tracked)
            self.show.print_line(f"  {self._headline()}")
            found = advice_of(schedule.run(), options.margin, self._notes())
            return self._with_slow_downs(found, pool, folder)

    def _probe(self, pool: SimulationPool, folder: Path) -> dict[str, SimulationSeconds]:
        """Simulate each mode on a few global batches; return the CPU seconds of each simulation, by mode."""
        self.show.print_line(f"  probing {', '.join(self.modes)}")
        wanted = PROBE_STEPS * self.cfg.train.global_batch
        small = choose_subset(self.dataset.path, self.cfg.train, wanted, self._timed)
        small = replace(small, base=0)
        self.probed = small.trained
        calls = {mode: (simulate, cfg, small, folder / "probe" / mode, None) for mode, cfg in self.modes.items()}
        found: dict[str, Outcome] = pool.all_of(calls)
        shutil.rmtree(folder / "probe", ignore_errors=True)
        return {mode: outcome.took for mode, outcome in found.items()}

    @property
    def _timed(self) -> int:
        """Number of samples in a simulation that predicts only the EPS, without gradients."""
        least, most = TIMED_STEPS
        steps = GRADIENTS // max(cfg.gradients_per_step for cfg in self.modes.values())
        return min(max(steps, least), most) * self.cfg.train.global_batch

    def _subset(self, took: dict[str, SimulationSeconds], jobs: int) -> DataSubset:
        """Choose the size of the subset so that the simulations fit into the time left.

        CPU seconds of the probe count, and by how much real seconds were longer: other processes take their share."""
        wanted = self.options.samples
        if wanted is None:
            bases = self.options.seeds or FEWEST_SEEDS
            few = 1 if self.options.seeds else min(CANDIDATES / len(took), 1)
            share = 1 + (bases - 1) * few  # simulations of each mode, on average
            fixed = share * sum(each.timing + each.setting_up for each in took.values())
            fixed += bases * took[SYNC].setting_up
            pace = max(1.0, sum(each.wall for each in took.values()) / sum(each.total for each in took.values()))
            room = SPARE * (self._left / pace - self._reserve(took, jobs)) * jobs - fixed
            a_sample = share * sum(each.training for each in took.values()) / self.probed
            a_base_sample = bases * took[SYNC].training / self.probed
            base_rows = SwitchSplits.divide(self.dataset, self.cfg.train.days).base_rows
            fits = samples_that_fit(room, a_sample, a_base_sample, base_rows)
            wanted = max(int(fits), PROBE_STEPS * self.cfg.train.global_batch)
        subset = choose_subset(self.dataset.path, self.cfg.train, wanted, self._timed)
        labels = subset.judge().whole.labels
        if labels.min() == labels.max():
            raise UsageError(
                f"All {len(labels):,} evaluation samples have the label {labels[0]}, so no AUC can be computed; "
                "give data with more of the other label, or type a larger --samples."
            )
        return subset

    @property
    def _left(self) -> float:
        return self.began + 60 * self.options.minutes - time.monotonic()

    def _reserve(self, took: dict[str, SimulationSeconds], jobs: int) -> float:
        """Seconds to reserve for the simulations with one slower worker."""
        slowest = max(each.timing for mode, each in took.items() if mode != SYNC) if len(took) > 1 else 0.0
        return len(SLOW_DOWNS) * (took[SYNC].timing + slowest) / jobs

    def _schedule(
        self, pool: SimulationPool, folder: Path, took: dict[str, SimulationSeconds], tracked: TrackedRun | None
    ) -> Schedule:
        share = self.subset.trained / self.probed
        seconds = {mode: each.timing + each.setting_up + share * each.training for mode, each in took.items()}
        base = took[SYNC].setting_up + self.subset.base / self.probed * took[SYNC].training
        deadline = time.monotonic() + self._left - self._reserve(took, pool.jobs)

        def on_outcome(outcome: Outcome) -> None:
            spent = 1 - self._left / (60 * self.options.minutes)
            self.show.show_step(f"simulated: {outcome.mode}, seed {outcome.seed}", min(0.99, spent))
            self._log_simulation(outcome, folder, tracked)

        def narrow(outcomes: Sequence[Outcome]) -> list[str]:
            return modes_needing_seeds(outcomes, self.options.margin)

        seeds = self.options.seeds
        return Schedule(pool, self.modes, self.subset, folder, base, seconds, deadline, seeds, on_outcome, narrow)

    def _with_slow_downs(self, found: Advice, pool: SimulationPool, folder: Path) -> Advice:
        """Add the ratio of the EPS of mode `found.beside` to sync's EPS, for each slow-down of one worker."""
        if not found.beside:
            return found
        self.show.clear()
        self.show.print_line(f"  simulating {found.beside} and {SYNC} with one slower worker")
        calls = {
            (mode, factor): (
                predicted_eps, self._slowed(mode, factor), self.subset, folder / "slower" / f"{mode}-{factor}",
            )
            for factor in SLOW_DOWNS for mode in (SYNC, found.beside)
        }  # fmt: skip
        eps = pool.all_of(calls)
        shutil.rmtree(folder / "slower", ignore_errors=True)
        rates = {factor: eps[found.beside, factor] / eps[SYNC, factor] for factor in SLOW_DOWNS}
        return replace(found, rates=rates)

    def _slowed(self, mode: str, factor: float) -> RunConfig:
        plans = [{"kind": "constant", "workers": [0], "factor": factor}] if factor > 1 else []
        return replace(self.modes[mode], faults=FaultsConfig(name="one_slower", plans=plans))

    # -- words --------------------------------------------------------------------------------------

    def _headline(self) -> str:
        cfg, subset = self.cfg, self.subset
        return (
            f"virtual cluster ({cfg.cost.name}): {cfg.cluster.workers} workers, {cfg.cluster.servers} servers, "
            f"faults {cfg.faults.name}; {len(self.modes)} modes, {subset.base:,} samples of {SYNC}, then "
            f"{subset.trained:,} in each mode"
        )

    def _notes(self) -> list[str]:
        subset = self.subset
        steps = subset.trained // self.cfg.train.global_batch
        return [
            f"Each run: {subset.base:,} samples of {SYNC}, then {subset.trained:,} ({steps} global batches) in its "
            f"mode, judged by {subset.judged:,}. EPS: of {subset.timed:,} samples on the virtual cluster "
            f"({self.cfg.cost.name}).",
            *self.left_out,
        ]

    def _more_batches(self) -> str:
        """Describe what the user can do to have more global batches simulated."""
        if not has_batches(self.subset.path, self.cfg.train, LEAST_BASE, LEAST_STEPS):
            return "give more data"
        return f"type a larger {'--minutes' if self.options.samples is None else '--samples'}"

    def _tell(self, found: Advice, folder: Path, tracked: TrackedRun | None) -> None:
        """Print the advice, write it to advice.json, and log it."""
        steps = self.subset.trained // self.cfg.train.global_batch
        base = self.subset.base // self.cfg.train.global_batch
        assumed = self.cfg.cost.name if self.cfg.cost.name in option_files("cost") else ""
        minutes = self.options.minutes if self.options.seeds is None else None
        words = sentence(found, self.cfg.cluster.workers, minutes, base, steps, self._more_batches(), assumed)
        result = {
            "sentence": words, **plain(found), "workers": self.cfg.cluster.workers, "cost": self.cfg.cost.name,
            "faults": self.cfg.faults.name, "worthwhile": WORTHWHILE,
            "sample": {name: getattr(self.subset, name) for name in ("base", "trained", "judged", "timed")},
            "seconds": time.monotonic() - self.began, "run_dir": str(folder),
            "run_id": None if tracked is None else tracked.run_id,
        }  # fmt: skip
        result = dict(atomic_files.plain(result))
        (folder / RESULT).write_text(json.dumps(result, indent=2) + "\n")
        if tracked is not None:
            metrics: dict[str, float | None] = {"advise/seconds": result["seconds"]}
            for mode in result["modes"]:
                names_ = ("eps", "eps_ratio", "auc", "auc_difference")
                metrics |= {f"advise/{name} {mode['mode']}": mode[name] for name in names_}
            tracked.log(metrics, 0, result["seconds"])
            note = run_note(f"{words}\n\n{markdown(found.report)}", self.command)
            tracked.tag({NOTE: note, "gbactl.advice": words})
            tracked.artifact(folder / RESULT)
            self._finish(tracked, "FINISHED")
        if self.options.form == "json":
            self.out(json.dumps(result))
            return
        self.out(for_stdout(render(found.report, self.options.form, *on_terminal()).rstrip("\n")))
        self.out(for_stdout(f"\n{words}"))

    # -- MLflow -------------------------------------------------------------------------------------

    def _track(self, folder: Path, name: str, cfg: RunConfig, tags: dict[str, str]) -> TrackedRun | None:
        if not self.cfg.tracking.enabled:
            return None
        config, t = to_dict(cfg), self.cfg.tracking
        every = {**tags_of(config, self.dataset.fingerprint, "gbactl advise"), **tags}
        every |= {RUN_DIR: str(folder), CONFIG_TAG: config_tag(config)}
        params = parameters(flatten(effective_keys(cfg)), self.command, defaults_of(config))
        return TrackedRun(tracking_uri(t.uri), t.experiment, name, params, every, folder, warn=self.show.print_line)

    def _log_simulation(self, outcome: Outcome, folder: Path, parent: TrackedRun | None) -> None:
        """Log a finished simulation as a child run."""
        own = folder / f"{outcome.mode}-s{outcome.seed}"
        if parent is None or outcome.diverged:
            return
        cfg = replace(self.modes[outcome.mode], seed=outcome.seed)
        with run_dirs.lock(own):
            tags = {PARENT: parent.run_id, MODE_TAG: str(outcome.result["mode"])}
            subset = hashlib.sha256(self.subset.fingerprint.encode()).hexdigest()
            tags |= {CELL: finished_sweep_cells.cell_of(cfg, subset)}  # simulations on another subset make no pair
            child = self._track(own, f"{outcome.mode} s{outcome.seed}", cfg, tags)
            assert child is not None
            found: dict[str, float | None] = {**metrics_of(outcome.result), "advise/predicted_eps": outcome.eps}
            child.log(found, 0, outcome.took.total)
            child.artifact(own / atomic_files.RESULT)
            self._finish(child, "FINISHED")

    def _finish(self, tracked: TrackedRun | None, status: str) -> None:
        if tracked is not None and (unsent := tracked.finish(status)):
            self.show.print_line(unsent)
