"""Record of a run: its ledger, phases, curve, and the result made of them. No I/O."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

from gbactl.coordinator.handout import LivePhase
from gbactl.coordinator.schedule import EarlyStopping, Round
from gbactl.coordinator.state import JobPosition
from gbactl.coordinator.statistics import Statistics, quantiles
from gbactl.errors import ClusterError
from gbactl.policies import Ledger
from gbactl.store.checksum import MODULUS
from gbactl.wire.messages import Inspected

METRICS = ("auc", "logloss", "ne", "calibration")
FATES = ("read", "trained", "decayed", "lost", "effective")
SUMMED = ("steps", "samples", "decayed", "lost", "seconds", "closing_seconds")
MOST_POINTS = 1000  # of the curve in a checkpoint
OF_A_PHASE = ("mode", "first_sample", "first_step", "pause_ms", "fresh_optimizer")


def eps(trained: int, seconds: float) -> float:
    """Samples trained per second; 0 where no time was counted."""
    return trained / seconds if seconds > 0 else 0.0


def _sum_of(parts: Sequence[Ledger]) -> Ledger:
    """Sum ledgers, with `read` set to the samples that have a fate."""
    whole = Ledger()
    for part in parts:
        whole.add(part)
    whole.read = whole.finished
    return whole


def _thinned(curve: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Thin a curve to about MOST_POINTS points, including its last one."""
    every = -(-len(curve) // MOST_POINTS)
    return list(curve) if every <= 1 else [*curve[::every], curve[-1]]


def by_round(phases: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Sum phases up to rounds (days or epochs), with the scores of each round's evaluation."""
    return [_added_up(list(parts)) for _, parts in groupby(phases, key=lambda phase: phase["day"])]


def _added_up(parts: list[dict[str, Any]]) -> dict[str, Any]:
    told = {key: value for phase in parts for key, value in phase.items() if key not in OF_A_PHASE}
    sums = {key: sum(phase.get(key, 0) for phase in parts) for key in SUMMED}
    modes = [mode for mode, _ in groupby(phase["mode"] for phase in parts)]
    return {**told, "modes": modes, **sums, "eps": eps(sums["samples"], sums["seconds"])}


class RunSummary:
    """Record that the coordinator fills during the run. Times are seconds since `start`."""

    def __init__(self, now: Callable[[], float] = time.monotonic, patience: int = 0) -> None:
        self.now = now
        self.stopping = EarlyStopping(patience)
        self.results: list[dict[str, Any]] = []  # of each finished round
        self.ledger = Ledger()
        self.statistics = Statistics()
        self.phases: list[dict[str, Any]] = []
        self.curve: list[dict[str, Any]] = []
        self.modes = ""  # modes so far: sync>gba@day2
        self.round: tuple[Round, int, int, int] | None = None  # round, its number, number of rounds, its samples
        self.last_gradient: float | None = None  # of the last phase, by `now`
        self._pause: float | None = None
        self._fresh = False
        self.start()

    def start(self) -> None:
        """Start the run's clock, when every node is ready."""
        self._began = self.now()

    def go_on(self, seconds: float) -> None:
        """Set the run's start to `seconds` ago or earlier, in a run that continues another."""
        self._began = min(self._began, self.now() - seconds)

    @property
    def began(self) -> float:
        """Time by `now` when every node was ready."""
        return self._began

    @property
    def seconds(self) -> float:
        """Seconds since every node was ready."""
        return self.now() - self._began

    @property
    def label(self) -> str:
        """Label of the current round: day 3, epoch 0."""
        return "" if self.round is None else self.round[0].label

    def pause(self, milliseconds: float | None) -> None:
        """Record the pause from the last gradient before a switch to the first one after it."""
        self._pause = milliseconds

    def afresh(self) -> None:
        """Record that the optimizer's state is reset with the next phase."""
        self._fresh = True

    def close_phase(self, part: Round, mode: str, training: LivePhase, first_sample: int) -> None:
        """Record a phase whose last gradient is applied.

        EPS covers first hand-out to last announced gradient; the time from there to the last applied step is
        `closing_seconds`."""
        policy, clock = training.policy, training.clock
        self.ledger.add(policy.ledger)
        self.last_gradient = None if clock.gradients is None else clock.gradients[1]
        end = clock.first if self.last_gradient is None else self.last_gradient
        pause, self._pause = self._pause, None
        fresh, self._fresh = self._fresh, False
        self.phases.append(
            {
                "day": part.label,
                "mode": mode,
                "first_sample": first_sample,
                "first_step": policy.phase.first_step,
                "pause_ms": pause,
                **({"fresh_optimizer": True} if fresh else {}),
                "steps": policy.step - policy.phase.first_step,
                "samples": policy.ledger.trained,
                "decayed": policy.ledger.decayed,
                "lost": policy.ledger.lost,
                "seconds": clock.seconds,
                "eps": eps(policy.ledger.trained, clock.seconds),
                "closing_seconds": 0.0 if end is None else self.now() - end,
            }
        )

    def close_round(self, evaluated: dict[str, dict[str, float]], judged_on: str) -> dict[str, Any]:
        """Add evaluations by split to the last phase, and return its round.

        The last of the evaluations is the round's score; early stopping uses the one on `judged_on`."""
        *_, last = evaluated
        judged = {f"judged_{key}": evaluated[judged_on][key] for key in ("auc", "logloss")}
        self.phases[-1].update(evaluated[last], evaluated_on=last, judged_on=judged_on, **judged)
        return by_round(self.phases)[-1]

    def progress(self, training: LivePhase | None, step: int) -> dict[str, Any]:
        """Progress of the run; adds a point to the curve if there is a new loss."""
        ledger = training.policy.ledger if training else Ledger()
        loss, now = self.statistics.take_loss(), self.seconds
        finished = self.ledger.finished + ledger.finished
        last = self.curve[-1] if self.curve else {"samples": 0, "seconds": 0.0}
        first = training.clock.first if training else None  # time between two phases is not training
        since = last["seconds"] if first is None else max(last["seconds"], first - self._began)
        rate = (finished - last["samples"]) / max(1e-9, now - since)
        point = {"samples": finished, "seconds": now, "loss": loss, "eps": rate}
        if loss is not None:
            self.curve.append(point)
        assert self.round is not None
        part, number, of, samples = self.round
        return {
            **point,
            **self._of_round(part.label, training),
            "step": training.policy.step if training else step,
            "workers": self.statistics.rates(now),
            "staleness": quantiles(self.statistics.staleness),
            "label": part.label,
            "round": number,
            "rounds": of,
            "round_samples": samples,
        }

    def _of_round(self, label: str, training: LivePhase | None) -> dict[str, Any]:
        """Samples of a round that have a fate, and its EPS so far."""
        parts = [phase for phase in self.phases if phase["day"] == label]
        ledger = training.policy.ledger if training else Ledger()
        trained = sum(phase["samples"] for phase in parts) + ledger.trained
        seconds = sum(phase["seconds"] for phase in parts) + (training.clock.seconds if training else 0.0)
        others = sum(phase.get(fate, 0) for phase in parts for fate in ("decayed", "lost"))
        finished = trained + others + ledger.decayed + ledger.lost
        return {"round_finished": finished, "round_eps": eps(trained, seconds)}

    def position(
        self, training: LivePhase | None, step: int, mode: dict[str, Any], switches: int, ended: bool = False
    ) -> JobPosition:
        """Position of the job in its data and schedule.

        `training`: the current phase, whose steps below `step` are ordered; `mode`: its keys; `switches`: entries of
        the schedule that were taken."""
        parts = [self.ledger] if training is None else [self.ledger, training.finished.ledger]
        return JobPosition(
            step=step, round=len(self.results), label=self.label, seconds=self.seconds, ended=ended,
            unread=None if training is None else list(training.unread), ledger=_sum_of(parts), mode=mode,
            switches=switches, stopping=replace(self.stopping) if self.results else None,
            results=[dict(each) for each in self.results], modes=self.modes,
            phases=[*(dict(each) for each in self.phases), *self._open_phase(training, step, mode)],
            curve=_thinned(self.curve), statistics=self.statistics.counts,
        )  # fmt: skip

    def _open_phase(self, training: LivePhase | None, step: int, mode: dict[str, Any]) -> list[dict[str, Any]]:
        """Finished part of the current phase, as a phase of its own."""
        if training is None or step == training.policy.phase.first_step:
            return []
        done, seconds = training.finished.ledger, training.clock.seconds
        return [
            {
                "day": self.label, "mode": mode["name"], "first_sample": training.ranges[0][0],
                "first_step": training.policy.phase.first_step, "pause_ms": None,
                "steps": step - training.policy.phase.first_step, "samples": done.trained, "decayed": done.decayed,
                "lost": done.lost, "seconds": seconds, "eps": eps(done.trained, seconds), "closing_seconds": 0.0,
            }
        ]  # fmt: skip

    def restore(self, position: JobPosition) -> None:
        """Continue from a position, replacing what was recorded so far."""
        patience, stopping = self.stopping.patience, position.stopping
        self.stopping = EarlyStopping(patience) if stopping is None else replace(stopping, patience=patience)
        self.results = list(position.results)
        self.ledger, self.modes = replace(position.ledger), position.modes
        self.phases, self.curve = list(position.phases), list(position.curve)
        self.statistics.restore(copy.deepcopy(position.statistics), position.step, position.ledger.finished)

    def result(self, best: dict[str, Any], inspected: dict[str, Inspected]) -> dict[str, Any]:
        """Fields of result.json about the training. Raises ClusterError if replicas differ."""
        seconds = sum(phase["seconds"] for phase in self.phases)
        return {
            **{key: best[key] for key in METRICS},
            "best_round": best["day"],
            **{key: best.get(key) for key in ("evaluated_on", "judged_on", "judged_auc")},
            "eps": eps(self.ledger.trained, seconds),
            "samples": {fate: getattr(self.ledger, fate) for fate in FATES},
            "phases": self.phases,
            "rounds": by_round(self.phases),
            "curve": self.curve,
            **self.statistics.summary({name: v.counters for name, v in inspected.items()}),
            "checksums": checksums(inspected),
            "memory": {name: v.bytes for name, v in sorted(inspected.items()) if v.bytes},
        }


def checksums(inspected: dict[str, Inspected]) -> dict[str, str | None]:
    """Checksums per node, and `model`: the same for any number of servers; None where tables are too large for it.

    Raises ClusterError if the workers' replicas differ."""
    own = {name: v.checksum for name, v in sorted(inspected.items()) if v.checksum}
    if len({checksum for name, checksum in own.items() if name.startswith("W")}) > 1:
        raise ClusterError("The workers' dense parameters differ after synchronous training; please report this.")
    servers = [v.model_sum for name, v in inspected.items() if name.startswith("S")]
    replicas = {v.model_sum for name, v in inspected.items() if name.startswith("W") and v.model_sum}
    parts = [*servers, *replicas]
    model = f"{sum(int(part) for part in parts) % MODULUS:016x}" if all(parts) else None
    return {**own, "model": model}
