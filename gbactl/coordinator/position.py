"""Where a job stands at a cut, as plain containers for the manifest, and a coordinator put back there.

What was handed out and not applied is unread again: it will be handed out once more, and counts once. Curves are
thinned out to MOST_POINTS.
"""

from __future__ import annotations

import copy
from collections import Counter
from dataclasses import asdict, fields, replace
from typing import TYPE_CHECKING, Any

from gbactl.checkpoint.folder import Chain
from gbactl.checkpoint.ranges import Ranges, merged
from gbactl.coordinator.schedule import EarlyStopping
from gbactl.coordinator.statistics import Statistics, WorkerRate
from gbactl.coordinator.summary import RunRecord, eps
from gbactl.errors import CheckpointError
from gbactl.policies import Ledger
from gbactl.policies.base import policy_class
from gbactl.switching.history import switched

if TYPE_CHECKING:
    from gbactl.coordinator.handout import Training

MOST_POINTS = 1000


def ledger_of(*parts: Ledger) -> Ledger:
    """The sum of what has a fate: nothing else was read."""
    whole = Ledger()
    for part in parts:
        whole.add(part)
    whole.read = whole.finished
    return whole


def told(
    record: RunRecord, stopping: EarlyStopping, results: list[dict[str, Any]], training: Training | None,
    step: int, mode: dict[str, Any], switches: int, ended: bool,
) -> dict[str, Any]:  # fmt: skip
    """A position. `training`: the phase that goes on, whose steps below `step` are ordered; `mode`: its keys."""
    parts = [record.ledger] if training is None else [record.ledger, training.finished.ledger]
    unread = None if training is None else training.unread
    return {
        "step": step, "round": len(results), "label": record.label, "seconds": record.seconds, "ended": ended,
        "unread": None if unread is None else [list(pair) for pair in unread],
        "ledger": _plain(ledger_of(*parts)), "mode": mode, "switches": switches,
        "stopping": asdict(stopping) if results else None, "results": [dict(each) for each in results],
        "modes": record.modes,
        "phases": [*(dict(each) for each in record.phases), *_open_phase(record, training, step, mode)],
        "curve": _thin(record.curve), "statistics": _statistics(record.statistics),
    }  # fmt: skip


def _plain(ledger: Ledger) -> dict[str, float]:
    return {name: getattr(ledger, name) for name in Ledger.__slots__}


def _open_phase(record: RunRecord, training: Training | None, step: int, mode: dict[str, Any]) -> list[dict[str, Any]]:
    """The part of a phase that is done, as a phase of its own."""
    if training is None or step == training.policy.phase.first_step:
        return []
    done, seconds = training.finished.ledger, training.clock.seconds
    return [
        {
            "day": record.label, "mode": mode["name"], "first_sample": training.ranges[0][0],
            "first_step": training.policy.phase.first_step, "pause_ms": None,
            "steps": step - training.policy.phase.first_step, "samples": done.trained, "decayed": done.decayed,
            "lost": done.lost, "seconds": seconds, "eps": eps(done.trained, seconds), "closing_seconds": 0.0,
        }
    ]  # fmt: skip


def _thin(curve: list[dict[str, Any]]) -> list[dict[str, Any]]:
    every = -(-len(curve) // MOST_POINTS)
    return list(curve) if every <= 1 else [*curve[::every], curve[-1]]


def _statistics(found: Statistics) -> dict[str, Any]:
    return {
        "staleness": sorted(found.staleness.items()), "token_staleness": sorted(found.token_staleness.items()),
        "samples_behind": found.samples_behind, "gradients": dict(found.gradients),
        "workers": [[worker, *asdict(rate).values()] for worker, rate in sorted(found.workers.items())],
        "first_loss": found.limit.first,
    }  # fmt: skip


class Position:
    """A position as a manifest has it. Raises CheckpointError where it is none."""

    def __init__(self, values: dict[str, Any]) -> None:
        self._values = values
        try:
            self.step, self.round = int(values["step"]), int(values["round"])
            self.ended, self.switches = bool(values["ended"]), int(values["switches"])
            self.mode: dict[str, Any] = dict(values["mode"])
            self.modes = str(values.get("modes", self.mode["name"]))
            self.unread: Ranges | None = None
            if values["unread"] is not None:
                self.unread = merged((int(low), int(high)) for low, high in values["unread"])
            self.ledger = Ledger(**{each.name: values["ledger"][each.name] for each in fields(Ledger)})
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"A checkpoint's position cannot be used ({error!r}).") from error

    @property
    def dense(self) -> str:
        """What the dense part is: of trainers the centre or the mean of their replicas."""
        mode = policy_class(str(self.mode["name"]))
        if mode.home != "replicas":
            return "the dense parameters"
        return "the mean of the replicas" if mode.collective else "the centre"

    @property
    def stopped_early(self) -> bool:
        """Whether patience was at its end."""
        stopping = self._values["stopping"]
        return bool(stopping and 0 < stopping["patience"] <= stopping["seen"] - 1 - stopping["best_round"])

    def modes_with(self, mode: str) -> str:
        """The name of a run that goes on from here in `mode`."""
        return self.modes if mode == self.mode["name"] else switched(self.modes, mode, f"step{self.step}")

    def go_back(self, record: RunRecord, stopping: EarlyStopping, results: list[dict[str, Any]]) -> None:
        """Put a run back where it was here; its clock goes on."""
        seconds = record.seconds
        results.clear()
        vars(stopping).update(vars(EarlyStopping(stopping.patience)))
        self.restore(record, stopping, results)
        record.go_on(seconds)

    def restore(self, record: RunRecord, stopping: EarlyStopping, results: list[dict[str, Any]]) -> None:
        """Put a run that has just begun where this one was."""
        values = self._values
        results += values["results"]
        for name, value in (values["stopping"] or {}).items():
            if name != "patience":
                setattr(stopping, name, value)
        record.ledger = replace(self.ledger)
        record.modes = self.modes
        record.phases, record.curve = list(values["phases"]), list(values["curve"])
        record.go_on(float(values["seconds"]))
        _restore_statistics(record.statistics, values["statistics"], self.step, self.ledger.finished)


def config_at(chain: Chain) -> dict[str, Any]:
    """The configuration that a run had at a checkpoint: in the mode of that moment, with the switches yet to come."""
    config, position = copy.deepcopy(chain.last.config), Position(chain.last.position)
    mode = dict(position.mode)
    config["cluster"]["workers"] = mode.pop("workers", config["cluster"]["workers"])
    config["mode"], switch = mode, config["switch"]
    for key in ("schedule", "modes"):
        switch[key] = switch[key][position.switches :]
    config["run_dir"] = None
    return config


def _restore_statistics(into: Statistics, values: dict[str, Any], step: int, finished: int) -> None:
    into.staleness = Counter({int(k): int(n) for k, n in values["staleness"]})
    into.token_staleness = Counter({int(k): int(n) for k, n in values["token_staleness"]})
    into.samples_behind, into.gradients = float(values["samples_behind"]), Counter(values["gradients"])
    into.workers = {int(worker): WorkerRate(*rest) for worker, *rest in values["workers"]}
    into.limit.first = values.get("first_loss")  # not known of older checkpoints
    into.samples_at = [finished] * (step + 1)
