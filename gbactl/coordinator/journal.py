"""What a coordinator leaves for one that takes its place: how things stood when nothing was in flight, and the event
log from there on.

coordinator.json in the run directory is written between two phases, complete or not at all; what changes within a
phase and is no step of it (who is gone, failures, checkpoints) stands in the log as a note. Costs a small file a phase
and a write for each record of the log that somebody acts upon (2 us).
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gbactl.checkpoint.ranges import Ranges
from gbactl.config import RunConfig, mode_values
from gbactl.coordinator import event_log
from gbactl.coordinator import position as positions
from gbactl.coordinator.event_log import InfoRecord, Record
from gbactl.errors import EventLogError

if TYPE_CHECKING:
    from gbactl.coordinator.core import Coordinator

NAME = "coordinator.json"
TRAIN, EVALUATE, OVER = "train", "evaluate", "over"


def kept(cfg: RunConfig) -> bool:
    """Whether a run goes on when its coordinator is killed; one in virtual time needs no journal for that."""
    return cfg.place.real and cfg.cluster.lost_coordinator == "replace"


@dataclass
class Found:
    """What a dead coordinator left: the last standstill, the log's records after it, and where its last whole one
    ends. `epoch` of its successor; when it was `missed`, in seconds of the machine's clock, as what, and when its last
    `sign` of life was."""

    stood: dict[str, Any]
    records: list[Record]
    end: int
    epoch: int = 1
    missed: float = 0.0
    failure: str = "death"
    sign: float = 0.0

    @classmethod
    def of(cls, run_dir: Path, epoch: int, missed: float, failure: str = "death", sign: float | None = None) -> Found:
        """Of a run. Raises EventLogError where it cannot be used."""
        try:
            stood = json.loads((run_dir / NAME).read_text())
            offset = int(stood["offset"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise EventLogError(f"{run_dir / NAME} cannot be used ({error!r}).") from error
        sign = missed if sign is None else sign
        return cls(stood, *event_log.tail(run_dir / "events.log", offset), epoch, missed, failure, sign)

    @property
    def notes(self) -> dict[str, Any]:
        """The last ones."""
        found: dict[str, Any] = self.stood["notes"]
        for record in self.records:
            if isinstance(record, InfoRecord) and record.kind == event_log.NOTE:
                found = record.fields
        return found


class Journal:
    """Part of the coordinator. Does nothing in a run that ends with its coordinator."""

    def __init__(self, coordinator: Coordinator, run_dir: Path, found: Found | None) -> None:
        self.c, self.path = coordinator, run_dir / NAME
        self.on = kept(coordinator.cfg)
        if found is None:
            self.path.unlink(missing_ok=True)  # of an earlier part of a run that was resumed
        self.epochs: dict[int, int] = {}  # of workers that are not the first in their place

    def stands(self, stage: str, number: int, rest: Ranges = (), inside: bool = False) -> None:
        """Nothing is in flight, and round `number` comes to: training on the `rest` of it, or evaluation; or all is
        over."""
        if not self.on:
            return
        c = self.c
        c.log.flush()
        switcher = c.switcher
        position = positions.told(
            c.record, c.cuts.stopping, c.cuts.results, None, c.step, mode_values(c.now), switcher.plan.taken, False
        )
        told = {
            "stage": stage, "round": number, "rest": rest, "inside": inside, "offset": c.log.bytes,
            "phase": c._phase_number, "at": c.hub.now(), "began": c.hub.now() - c.record.seconds,
            "position": position, "switch": switcher.told(), "replicas": c.trainers.told(), "notes": self.notes(),
        }  # fmt: skip
        partial = self.path.with_name(f".{NAME}.partial")
        partial.write_text(json.dumps(told))
        partial.replace(self.path)

    def note(self) -> None:
        """Something of what notes tell has changed."""
        if self.on and self.c.started:
            self.c.log.info(event_log.NOTE, self.notes())

    def notes(self) -> dict[str, Any]:
        """As plain containers."""
        c, times = self.c, self.c.recovery.times
        return {
            "epochs": sorted(self.epochs.items()), "gone": list(c.losses.gone), "struck": list(c.recovery.struck),
            "failed": [asdict(failed) for failed in times.all], "injured": sorted(times.injuries.items()),
            "cuts": c.cuts.told(), "moves": c.switcher.moves(), "broken": c.recovery.broken,
            "dense_lost": c.lost_parts.told(), "acted": c.record.statistics.acted,
            "servers": sorted((shard, channel.peer.epoch) for shard, channel in c.members.of("server").items()),
        }  # fmt: skip

    def came(self, worker: int, epoch: int) -> None:
        """A worker, of an epoch of its own, is a member, or is gone."""
        self.epochs[worker] = epoch
        self.note()
