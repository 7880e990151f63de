"""Implementation of `gbactl train`: one run from a checked configuration to result.json."""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from gbactl import shared_memory_names
from gbactl.atomic_files import CONFIG, RESULT, plain, room_needed, write_result
from gbactl.checkpoint.folder import CHECKPOINTS, CheckpointFolder
from gbactl.collective import check_here
from gbactl.collective.base import Rendezvous
from gbactl.config import RunConfig, flatten, rounds, samples_of, to_dict
from gbactl.config.run_config import effective_keys, ineffective_keys
from gbactl.config.validation import try_policy
from gbactl.configured_classes import own_code_told
from gbactl.coordinator.run_record import METRICS, by_round
from gbactl.cpu import SLOW_BF16, lacks_bf16
from gbactl.data.dataset import DAYS_BY_ROWS, Dataset
from gbactl.engine.fork_server import close_fork_server, open_fork_server
from gbactl.engine.local_processes import RunProcesses
from gbactl.engine.preflight import check_memory, check_model, too_few
from gbactl.engine.stop_signals import (
    NOTHING,
    StopRequest,
    deferred,
    first_signal_recorded,
    raise_if_stopped,
    stop_signal,
    stoppable,
)
from gbactl.errors import ClusterError, NoRoomError, OwnCodeError, Stopped, UsageError
from gbactl.faults.cpu_hogs import CpuHogs
from gbactl.faults.observed_effects import fault_lines, fault_metrics, with_injected
from gbactl.launch import finished_sweep_cells
from gbactl.launch import run_dir as run_dirs
from gbactl.launch.control_socket import ControlSocket
from gbactl.launch.progress import JobProgress, ProgressDisplay, after_run, prepared, unit_of
from gbactl.launch.resume import EXPECTED, StartingPoint, checkpoint_sentence, run_of
from gbactl.launch.run_dir import end_orphans
from gbactl.launch.supervision import (
    CoordinatorConnection,
    FaultInjection,
    Replacements,
    event_sentence,
    repeats_known_failure,
    repeats_known_switch,
)
from gbactl.launch.sweep_parent_run import parent_tags
from gbactl.models import dimension_mask
from gbactl.report.failures_and_slowdowns import slow_sentence
from gbactl.switching.auto_controller import AUTO_FILE
from gbactl.switching.switch_schedule import located
from gbactl.switching.switch_texts import answer, legend, mode_id, modes_sentence, requested_sentence
from gbactl.tracking.metrics_and_tags import (
    DAYS_TAG,
    ORIGIN,
    ORIGIN_RUN,
    RUN_DIR,
    SLOW_WORKER,
    failed_in_short,
    failure_metrics,
    metrics_of,
    replica_metrics,
    tags_of,
    useless,
)
from gbactl.tracking.mlflow_store import CELL, COMMAND, NOTE, tracking_uri
from gbactl.tracking.run_description import (
    CONFIG_TAG,
    MODE_TAG,
    CommandLine,
    config_tag,
    dataset_inputs,
    parameters,
    run_name,
    run_note,
)
from gbactl.tracking.tracked_run import SystemMetrics, TrackedRun
from gbactl.wire.auth import Peer, new_key
from gbactl.wire.messages import Event, unpack
from gbactl.wire.node_connections import SocketHub
from gbactl.wire.node_measurements import TRACE_DIR, merge_traces

EXIT_SECONDS = 15.0
CAUSE_SECONDS = 3.0
LOOK_SECONDS, ENDED_SECONDS = 0.25, 0.02  # intervals of checks on child processes: before and after the result
MOST_CURVES = 16  # throughputs are logged by worker for at most so many workers
OPEN_SECONDS, FINISH_SECONDS, STOP_SECONDS = 5.0, 30.0, 4.0  # time-outs for the tracking store


@stoppable(NOTHING)
def train(
    cfg: RunConfig, command: CommandLine | None = None, as_json: bool = False,
    display: type[ProgressDisplay] = ProgressDisplay, trace: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """Run one training, show its result and return it. Raises GbactlError, and Stopped after a signal.

    `command` names the run in MLflow, where it is shown as the one that runs it again. `as_json`: print JSON.
    `display` shows progress and result. `trace`: write a trace of the processes' activities."""
    command = command or CommandLine()
    if trace and not cfg.engine.real:
        raise UsageError("Only real processes can be traced; type cluster=local or leave out --trace.")
    for phase in cfg.possible:
        try_policy(phase)
    if cfg.engine.here and cfg.collects:
        check_here(cfg.collective.name)  # with several hosts, preflight checks them
    if cfg.engine.real:
        open_fork_server()
    else:
        close_fork_server()
    show = display(unit_of(cfg.engine.clock), command.place)
    hogs = CpuHogs(cfg.fault_plan(), cfg.pinned)
    dataset = prepared(cfg.data, show)
    plan = rounds(dataset, cfg.train)
    show.job = JobProgress(samples_of(dataset, cfg.train))
    located(cfg.entries, [dataset.splits[part.split].rows for part in plan])  # raises for an unreachable switch
    dimension_mask(cfg.model, dataset.schema, dataset.meta["field_names"])  # raises for a field that the data lack
    warnings = [each for each in check_model(cfg, dataset) or () if each]
    check_memory(cfg, dataset)
    job = StartingPoint.of(cfg, dataset, len(plan))
    if job.earlier is not None and job.earlier.get("command"):
        command = command.retyped(job.earlier["command"])
    run_dir = job.run_dir(cfg)
    show.print_detail(_headline(cfg, dataset))
    if warning := too_few(cfg, {part.label: dataset.splits[part.split].rows for part in plan}):
        show.print_line(f"Warning: {warning}")
    if dataset.days_by_rows:
        show.print_detail(f"  {DAYS_BY_ROWS}")
    for warning in warnings:
        show.print_line(f"Warning: {warning}")
    if cfg.precision == "bf16" and cfg.engine.one_host and lacks_bf16():
        show.print_line(f"  {SLOW_BF16}")
    with run_dirs.lock(run_dir):
        job.begin(run_dir, cfg)
        shutil.rmtree(run_dir / TRACE_DIR, ignore_errors=True)  # of a launcher that was killed
        with traced(run_dir, show) if trace else contextlib.nullcontext():
            run = LaunchedRun(cfg, dataset, run_dir, show, hogs, job, command)
            run.warnings += warnings
            result = run.run()
    if as_json:
        print(json.dumps(result), flush=True)
    elif command.place is not None:
        show.show_end(result, run_name(result["mode"], cfg.seed, command, ineffective_keys(cfg)))
    else:
        from gbactl.launch.hydra_config import compose

        show.show_result(result, after_run(cfg, command, result, compose))
    if stop_signal():
        raise Stopped(stop_signal(), Stopped.OVER)
    return result


def train_switching(overrides: list[str], as_json: bool) -> None:
    """Run one training like `train`, but require a switch schedule. Raises UsageError without one."""
    from gbactl.launch.hydra_config import run_hydra

    def job(cfg: RunConfig, command: CommandLine) -> Any:
        if not cfg.switch.schedule and not cfg.candidates:
            raise UsageError(
                "There is nothing to switch: type switch.schedule='[{at: {day: 1}, to: gba}]', switch=auto, or "
                "--run RUN --to MODE for a run that goes on already."
            )
        return train(cfg, command, as_json)

    run_hydra(overrides, job, "switch", ["--json"] * as_json)


@contextlib.contextmanager
def traced(run_dir: Path, show: ProgressDisplay) -> Iterator[None]:
    """Context in which a run's processes write traces to its trace directory; at the end, they become one file."""
    (run_dir / TRACE_DIR).mkdir()
    try:
        yield
    finally:
        with room_needed(run_dir):
            path = merge_traces(run_dir)
        show.print_line(f"Trace: {path} (ui.perfetto.dev opens it)")


def _headline(cfg: RunConfig, dataset: Dataset) -> str:
    modelled = "" if cfg.engine.real else f"virtual cluster ({cfg.cost.name}), "
    return (
        f"{modelled}mode {cfg.mode.name}: {cfg.cluster.workers} workers, {cfg.cluster.servers} servers, "
        f"G {cfg.train.global_batch}, local batch {cfg.local_batch}, M {cfg.gradients_per_step}, "
        f"seed {cfg.seed}, {dataset.rows:,} samples"
    )


class LaunchedRun:
    """Launcher's side of one run: start, watch, log, finish."""

    def __init__(
        self,
        cfg: RunConfig,
        dataset: Dataset,
        run_dir: Path,
        show: ProgressDisplay,
        hogs: CpuHogs,
        job: StartingPoint | None = None,
        command: CommandLine | None = None,
    ) -> None:
        self.job, self.command = job or StartingPoint(), command or CommandLine()
        self.cfg, self.dataset, self.run_dir, self.show, self.hogs = cfg, dataset, run_dir, show, hogs
        earlier = self.job.earlier
        self.cell = finished_sweep_cells.cell_of(cfg, dataset.fingerprint) if earlier is None else earlier.get("cell")
        self.key = new_key()
        self.began = time.monotonic()
        self.result: dict[str, Any] | None = None
        self.phases: list[dict[str, Any]] = []
        self.lost: list[dict[str, Any]] = []
        self.warnings: list[str] = []
        self.injected: list[dict[str, Any]] = []
        self.injection: FaultInjection | None = None
        self.switches: list[dict[str, Any]] = []
        self.modes = self.job.modes(cfg)
        self.tracked: TrackedRun | None = None
        self.system = SystemMetrics()
        self.control: ControlSocket | None = None
        self.rendezvous: Rendezvous | None = None
        self.stop = StopRequest(cfg.cluster.stop_seconds, self._print_below)
        self.listeners: list[Callable[[Event], None]] = [self.stop.on_event]  # called with every event
        self.polls: list[Callable[[], None]] = []  # called between the coordinator's messages

    def run(self) -> dict[str, Any]:
        """Start all processes, train to the end, and return the result.

        However the training ends, child processes are stopped, tracking is finished and logs are kept."""
        shared_memory_names.sweep()
        run_dirs.write_faults(self.run_dir, self.cfg)
        try:
            with deferred():  # a signal could leave the run unended
                self._begin_tracking()
            with own_code_told(OwnCodeError), room_needed(self.run_dir):
                self._train()
        except BaseException as error:
            stopped = self.stop.stopped_by(error)
            if stopped is None:
                self._end("FAILED", {"error": str(error)})
                raise
            self._stopped(stopped)
            raise stopped from None
        assert self.result is not None
        try:
            return self._end("FINISHED", self.result)
        except Stopped as stopped:
            stopped.outcome = Stopped.OVER
            raise

    def _stopped(self, stopped: Stopped) -> None:
        """Write the result of a run that was stopped by a signal."""
        stopped.outcome = self.stop.sentence(self.run_dir)
        fields = {**self.stop.answer, "signal": signal.Signals(stopped.number).name, "told": stopped.outcome}
        self._end("KILLED", {"error": "stopped by a signal", "stopped": fields})

    def _print_below(self, text: str) -> None:
        """Remove the progress bar and print a line of text in its place."""
        self.show.clear()
        self.show.print_line(text)

    def look_at_signals(self, tell: Callable[[Event], None]) -> None:
        """Request a checkpoint and stop at the first signal, unless the run already has its result."""
        if self.result is None:
            self.stop.poll(tell)

    def _train(self) -> None:
        try:
            self.cfg.engine.train(self)
        finally:
            self.show.clear()
            CheckpointFolder(self.run_dir / CHECKPOINTS).sweep()

    def follow(self, children: RunProcesses) -> None:
        try:
            self.injection, replacements = FaultInjection(children), Replacements(children, self.show.print_line)
            self.listeners.append(replacements.on_event)
            self.polls += [self.injection.poll, replacements.poll]
            children.prepare()
            if why := children.save_obstacle:
                self.stop.refuse(why)
                self.show.print_line(f"  If this run is stopped, it is not saved: {why}.")
            with self._collective(children) as environments:
                self.show.print_detail(f"  starting {self.cfg.processes} workers, {self.cfg.cluster.servers} servers")
                children.start(environments)
                if self.tracked is not None:  # importing MLflow must not take CPU time from training
                    self.tracked.opened(OPEN_SECONDS)
                self._supervise(children)
        finally:
            self.show.clear()
            self.hogs.stop()
            children.stop()
            shared_memory_names.sweep()

    @contextlib.contextmanager
    def _collective(self, children: RunProcesses) -> Iterator[list[dict[str, str]]]:
        """Context that yields the workers' environments; it runs a rendezvous if the mode has an all-reduce."""
        workers, c = self.cfg.processes, self.cfg.collective
        if not self.cfg.collects:
            yield [{} for _ in range(workers)]
            return
        from gbactl.collective import open_rendezvous

        bind, cycle, rank_slots = children.cfg.cluster.bind, self.cfg.cycle_time_ms, children.rank_slots
        survives = self.cfg.cluster.lost_worker != "end"
        with open_rendezvous(
            c.name, workers, self.run_dir, bind, cycle, survives=survives, rank_slots=rank_slots
        ) as rendezvous:
            self.rendezvous = rendezvous
            yield [rendezvous.environment(rank) for rank in range(workers)]

    def _supervise(self, children: RunProcesses) -> None:
        """Handle the coordinator's events until the result arrives; raise the error of a failed child process."""
        hub = SocketHub(self.key, Peer("launcher", 0), encrypt=self.cfg.transport.encrypt)
        try:
            coordinator = CoordinatorConnection(
                children, hub, self.show.print_line, lambda: self._check(children, children.failure(), children.ended())
            )
            coordinator.connect()
            with first_signal_recorded():  # from the first step on there is something to save
                self.control = ControlSocket(self.run_dir, coordinator.send)
                self.listeners += [coordinator.on_event, self.control.on_event]
                self._listen(hub, children, coordinator, self.control)
        finally:
            if self.control is not None:
                self.control.close()
            hub.close()

    def _listen(
        self, hub: SocketHub, children: RunProcesses, coordinator: CoordinatorConnection, control: ControlSocket
    ) -> None:
        while not (self.result is not None and (children.ended() or children.coordinator_killed)):
            raise_if_stopped()
            self.look_at_signals(coordinator.send)
            # checked before polling, so that the last messages of a child that ended are read before its failure counts
            failure, over = children.failure(), children.ended()
            self._receive(hub, LOOK_SECONDS if self.result is None else ENDED_SECONDS)
            self._check(children, failure, over)
            for poll in self.polls:
                poll()
            if how := coordinator.kill_if_hanging():
                self._receive(hub, 0.0)  # the last messages of a failed coordinator
                if self.result is None:
                    coordinator.replace(how)
                    self.stop.repeat()
                    control.interrupted()

    def _receive(self, hub: SocketHub, seconds: float) -> None:
        for _, frame in hub.poll(seconds):
            if frame.kind != 0:
                self.on_event(unpack(frame.kind, frame.descriptor))

    def _check(self, children: RunProcesses, failure: tuple[str, bool] | None, over: bool) -> None:
        if failure is not None and self.result is None:
            deadline = time.monotonic() + CAUSE_SECONDS
            while not failure[1] and time.monotonic() < deadline:  # another process failed first, and is about to end
                time.sleep(0.05)
                failure = children.failure() or failure
            raise ClusterError(f"{failure[0]} Logs: {self.run_dir / 'logs'}")
        if over and self.result is None:
            raise ClusterError(f"Every process ended without a result; look into {self.run_dir / 'logs'}.")
        if self.result is not None and time.monotonic() - self._result_at > EXIT_SECONDS:
            raise ClusterError("The processes did not end after the result; they were killed.")

    def on_event(self, event: Event) -> None:
        raise_if_stopped()
        if repeats_known_switch(event, self.switches):
            return
        for listener in self.listeners:
            listener(event)
        if event.name == "progress":
            self.hogs.start()
            self.show.show_progress(event.fields)
            self._log_progress(event.fields)
        elif event.name == "phase":
            self.phases = event.fields["phases"]
        elif event.name == "round":
            self._on_evaluation(event.fields)
        elif event.name in ("lost", "joined", "rewound") and not repeats_known_failure(event, self.lost):
            if event.name == "lost" and event.fields["process"][0] == "W":
                self.lost.append(event.fields)
            sentence = event_sentence(event)
            self.show.print_line(f"  {sentence}")
            if self.control is not None:
                self.control.failures.append(sentence)
        elif event.name == "inject":
            self._on_injection(event.fields)
        elif event.name == "switch":
            self._on_switch(event.fields)
        elif event.name == "auto":
            self._on_auto_comparison(event.fields)
        elif event.name == "checkpoint":
            self._on_checkpoint(event.fields)
        elif event.name == "result":
            self._result_at = time.monotonic()
            self.result = event.fields
            self._update_name(event.fields["mode"])
            self.show.show_best(event.fields)

    def _on_evaluation(self, fields: dict[str, Any]) -> None:
        """Show and log the evaluation after a day or epoch."""
        self.phases = fields["phases"]
        self.show.show_round(fields)
        metrics = {key: fields[key] for key in METRICS if key in fields} | {"round_eps": fields["eps"]}
        if fields["judged_on"] != fields["evaluated_on"]:
            metrics |= {f"{fields['judged_on']}_{key}": fields[f"judged_{key}"] for key in ("auc", "logloss")}
        metrics |= {f"system/time/{name}": share for name, share in fields["time_shares"].items()}
        self._log({**metrics, **replica_metrics(fields)}, fields["samples_finished"])

    def _on_checkpoint(self, fields: dict[str, Any]) -> None:
        """Log a saved checkpoint, show a failed one, and do both with the estimated costs of planned ones."""
        if fields["state"] == "saved":
            metrics = {"checkpoint_seconds": fields["seconds"], "checkpoint_mb": fields["bytes"] / 1e6}
            self._log(metrics, fields["samples"])
            return
        if fields["state"] == "planned":
            self._log({f"checkpoint_{name}": fields[name] for name in EXPECTED}, 0)
        self.show.print_line(f"  {checkpoint_sentence(fields)}")

    def _on_injection(self, fields: dict[str, Any]) -> None:
        """Inject a fault into its process at the coordinator's request, and record it in faults.json at once."""
        pid = None if self.injection is None else self.injection.inject(fields)
        done = self.injection is None or pid is not None
        self.injected.append({**fields, "pid": pid, "done": done})
        run_dirs.write_faults(self.run_dir, self.cfg, self.injected)

    def _on_switch(self, fields: dict[str, Any]) -> None:
        """Show and log a mode switch that was completed or has failed."""
        if fields["state"] == "stayed":
            self.show.print_line(f"  No switch to {fields['to']}: {fields['why']}; the run stays in {fields['from']}.")
        elif fields["state"] == "done":
            self.switches.append(fields)
            self._log({"mode_id": mode_id(fields["to"]), "pause_ms": fields["pause_ms"]}, fields["samples"])
            self._update_name(fields["modes"])
            if self.tracked is not None:
                self.tracked.tag({"gbactl.phases": modes_sentence(self.cfg.mode.name, self.switches)})
            self.show.print_line(f"  {answer(fields)}")

    def _on_auto_comparison(self, fields: dict[str, Any]) -> None:
        """Log the throughputs of the modes that switch=auto compared, and show its reason for a switch."""
        self._log({"auto_sync_eps": fields["sync"], "auto_gba_eps": fields["gba"]}, fields["samples"])
        if fields["wanted"] != fields["mode"] and "obstacle" not in fields:
            self.show.print_line(f"  step {fields['step']}: {fields['reason']}.")

    def _log_progress(self, fields: dict[str, Any]) -> None:
        metrics = {"loss": fields["loss"], "eps_now": fields["eps"], "samples": float(fields["samples"])}
        metrics |= {"progressive_auc": fields["auc"], "mode_id": mode_id(fields["mode"])}
        if len(fields["workers"]) <= MOST_CURVES and fields["eps"] is not None:
            metrics |= {f"worker_eps_now/{w}": float(n) for w, n in fields["workers"].items()}
        if self.tracked is not None:
            metrics |= self.system.measure()
        self._log(metrics, fields["samples"])

    # -- tracking -----------------------------------------------------------------------------------

    def _begin_tracking(self) -> None:
        if not self.cfg.tracking.enabled:
            return
        from gbactl.launch.hydra_config import defaults_of

        config, t = to_dict(self.cfg), self.cfg.tracking
        tags = tags_of(config, self.dataset.fingerprint, f"gbactl {self.command.verb}")
        tags |= {RUN_DIR: str(self.run_dir), CONFIG_TAG: config_tag(config), NOTE: self._note()}
        tags |= {COMMAND: self.command.text} | ({CELL: self.cell} if self.cell else {})
        tags |= {DAYS_TAG: "rows"} if self.dataset.days_by_rows else {}
        tags |= {"gbactl.phases": self.cfg.mode.name, "gbactl.mode_id": legend(), **self._name_tags()}
        parts = rounds(self.dataset, self.cfg.train)
        datasets = dataset_inputs(
            self.dataset, config["data"], {part.split for part in parts}, {n for part in parts for n in part.evaluate}
        )
        tags |= parent_tags()
        if self.job.origin:
            tags |= {ORIGIN: self.job.origin}
        if origin := self._origin_run():
            tags |= {ORIGIN_RUN: origin}
        params = parameters(flatten(effective_keys(self.cfg)), self.command, defaults_of(config))
        self.tracked = TrackedRun(
            tracking_uri(t.uri), t.experiment, tags["mlflow.runName"], params, tags, self.run_dir,
            warn=self.show.print_line, resumed=self.job.tracked if self.job.same_run else None, beside=end_orphans,
            datasets=datasets,
        )  # fmt: skip
        self.tracked.artifact(self.run_dir / CONFIG)

    def _name_tags(self) -> dict[str, str]:
        """Return the MLflow tags that name the run by its modes (mlflow.runName is the displayed name)."""
        name = self.cfg.tracking.run_name
        if name is None:
            name = run_name(self.modes, self.cfg.seed, self.command, ineffective_keys(self.cfg))
        elif self.modes != self.cfg.mode.name:
            name = f"{name} {self.modes}"
        return {MODE_TAG: self.modes, "mlflow.runName": name}

    def _origin_run(self) -> str | None:
        """Return the MLflow id of another run from whose checkpoint this run started; None if there is none."""
        chain = self.job.chain
        return None if chain is None or self.job.same_run else run_dirs.tracked_as(run_of(chain))

    def _note(self, result: dict[str, Any] | None = None) -> str:
        """Write the run's note for MLflow; without a result, the note of a run still in progress."""
        headline = _headline(self.cfg, self.dataset)
        if self.job.chain is not None and not self.job.same_run:
            origin = run_of(self.job.chain)
            headline += f"\n\nIt goes on from `{origin.name}/{self.job.chain.last.name}`"
            headline += f", [MLflow run `{found}`](#/runs/{found})." if (found := self._origin_run()) else "."
        if result is None:
            return run_note(headline, self.command)
        switched = f"modes: {modes_sentence(self.cfg.mode.name, self.switches)}" if self.switches else ""
        requested = requested_sentence(self.switches)
        failed = f"failures: {failed_in_short(result)}" if result.get("recovery") else ""
        slowed = (result.get("faults") or {}).get("workers")  # by a fault plan, which says so
        slow = "" if slowed else slow_sentence(result.get("time") or {})
        events = [switched, requested, failed, *fault_lines(result), slow, *result.get("warnings", ())]
        return run_note(headline, self.command, result, [event for event in events if event])

    def _update_name(self, modes: str) -> None:
        """Update the run's name in MLflow after a change of its modes."""
        if modes != self.modes:
            self.modes = modes
            if self.tracked is not None:
                self.tracked.tag(self._name_tags())

    def _log(self, metrics: dict[str, float | None], step: int) -> None:
        if self.tracked is not None:
            self.tracked.log(metrics, step, time.monotonic() - self.began)

    def _end(self, status: str, fields: dict[str, Any]) -> dict[str, Any]:
        from gbactl import __version__

        result = {
            "mode": self.modes, "collective": self._all_reduce(), "seed": self.cfg.seed, "status": status,
            "command": self.command.text, "days_by_rows": self.dataset.days_by_rows, "origin": self.job.origin or None,
            "cell": None if self.control is not None and self.control.requests else self.cell,
            "clock": self.cfg.engine.clock, "virtual_seconds": None, **fields,
            "wall_seconds": time.monotonic() - self.began, "run_dir": str(self.run_dir),
            "run_id": self.tracked.run_id if self.tracked else None,
            "tracked_in": finished_sweep_cells.tracked_in(self.cfg.tracking), "gbactl": __version__,
        }  # fmt: skip
        if "refused" in result:
            self._count_refused(result)
        if "faults" in result:
            result["faults"] = with_injected(result["faults"], self.injected)
            for line in fault_lines(result):
                self.show.print_line(f"  {line}")
        if self.lost:
            result["lost_workers"] = self.lost
        if status == "FINISHED" and (warning := useless(result)):
            self.warnings.append(warning)
            self.show.print_line(f"Warning: {warning}")
        if self.warnings:
            result["warnings"] = self.warnings
        if status != "FINISHED":
            result |= {"phases": self.phases, "rounds": by_round(self.phases)}
        result = dict(plain(result))
        try:
            write_result(self.run_dir, result)
        except NoRoomError as error:
            if status == "FINISHED":
                self._end("FAILED", {"error": str(error)})
                raise
            self.show.print_line(str(error))
        if status == "FINISHED" and result["cell"] is not None:
            finished_sweep_cells.keep(result["cell"], self.run_dir)
        if self.tracked is not None:
            self._finish_tracking(status, result)
            if result["run_id"] != self.tracked.run_id:  # the store answered only now
                result["run_id"] = self.tracked.run_id
                with contextlib.suppress(NoRoomError):
                    write_result(self.run_dir, result)
        return result

    def _log_model(self, result: dict[str, Any]) -> None:
        """Register the newest checkpoint's model in the tracking store, without uploading its files."""
        assert self.tracked is not None
        folder = CheckpointFolder(self.run_dir / CHECKPOINTS)
        if names := folder.names():
            note = (
                f"The model of the checkpoint `{folder.path / names[-1]}`. In Python: "
                f"`gbactl.load({str(self.run_dir)!r}).model`; as files: `gbactl checkpoint export {self.run_dir}`."
            )
            metrics = {key: result[key] for key in METRICS if result.get(key) is not None}
            model = to_dict(self.cfg)["model"]
            self.tracked.model(model["name"], flatten(model), {NOTE: note}, metrics, result["samples"]["read"])

    def _count_refused(self, result: dict[str, Any]) -> None:
        """Add the connections that the launcher's own sockets (control, rendezvous) rejected to the result."""
        own_sockets = Counter({} if self.control is None else self.control.hub.refused)
        if self.rendezvous is not None and self.rendezvous.refused:
            own_sockets["A request to the all-reduce's rendezvous."] += self.rendezvous.refused
        result["refused"] = dict(Counter(result["refused"]) + own_sockets)
        result["refused_frames"] += own_sockets.total()

    def _all_reduce(self) -> str | None:
        """Return the name of the all-reduce implementation; None if no phase has an all-reduce."""
        if not self.cfg.collects:
            return None
        return self.cfg.collective.name if self.cfg.engine.real else "modelled"

    def _report(self) -> list[Path]:
        """Write the run's report page into its directory, for the tracking store."""
        from gbactl.report.report_command import run_page

        path = self.run_dir / run_dirs.REPORT
        try:
            path.write_text(run_page(self.run_dir), encoding="utf-8")
        except OSError as error:
            self.show.print_line(f"{path} cannot be written ({error.strerror}); the run is complete without it.")
            return []
        return [path]

    def _finish_tracking(self, status: str, result: dict[str, Any]) -> None:
        assert self.tracked is not None
        if status == "FINISHED":
            metrics: dict[str, float | None] = {
                **metrics_of(result),
                **fault_metrics(result),
                **failure_metrics(result),
            }
            self._log(metrics, result["samples"]["read"])
            self._log_model(result)
            if result.get("recovery"):
                self.tracked.tag({"gbactl.failures": failed_in_short(result)})
            if slow := slow_sentence(result.get("time") or {}):
                self.tracked.tag({SLOW_WORKER: slow})
            if result.get("warnings"):
                self.tracked.tag({"gbactl.warnings": " ".join(result["warnings"])})
        self.tracked.tag({NOTE: self._note(result)})
        page = self._report() if status == "FINISHED" else []
        paths = (self.run_dir / RESULT, *page, self.run_dir / run_dirs.FAULTS, self.run_dir / AUTO_FILE)
        for artifact in (path for path in paths if path.exists()):
            self.tracked.artifact(artifact)
        unsent = self.tracked.finish(status, FINISH_SECONDS if status == "FINISHED" else STOP_SECONDS)
        if unsent:
            self.show.print_line(unsent)
