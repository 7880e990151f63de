"""What a coordinator leaves for one that takes its place: its state when nothing was in flight, and the event log from
there on.

coordinator.json in the run directory is written between two phases, complete or not at all; what changes within a
phase and is no step of it (who is gone, failures, checkpoints) stands in the log as a note. Costs a small file a phase
and a write for each record of the log that somebody acts upon (2 us).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import msgspec

from gbactl.config import RunConfig
from gbactl.coordinator import event_log
from gbactl.coordinator.event_log import EventLog, InfoRecord, Record
from gbactl.coordinator.state import Ongoing, RunState, decoded, encoded
from gbactl.errors import EventLogError

NAME = "coordinator.json"


def kept(cfg: RunConfig) -> bool:
    """Whether a run goes on when its coordinator is killed; one in virtual time needs no journal for that."""
    return cfg.place.real and cfg.cluster.lost_coordinator == "replace"


@dataclass
class Found:
    """What a dead coordinator left: its state, with what changed since it was written; the log's records since then,
    and where its last whole one ends. `term` of its successor; when it was `missed`, in seconds of the machine's clock,
    as what, and when its last `sign` of life was."""

    state: RunState
    records: list[Record]
    end: int
    term: int = 1
    missed: float = 0.0
    failure: str = "death"
    sign: float = 0.0

    @classmethod
    def of(cls, run_dir: Path, term: int, missed: float, failure: str = "death", sign: float | None = None) -> Found:
        """Read what a run's coordinator left. Raises EventLogError where it cannot be used."""
        try:
            state = decoded(json.loads((run_dir / NAME).read_text()), RunState)
        except (OSError, ValueError, TypeError, msgspec.ValidationError) as error:
            raise EventLogError(f"{run_dir / NAME} cannot be used ({error!r}).") from error
        records, end = event_log.tail(run_dir / "events.log", state.stood.offset)
        for record in records:
            if isinstance(record, InfoRecord) and record.kind == event_log.NOTE:
                state.ongoing = decoded(record.fields, Ongoing)
        return cls(state, records, end, term, missed, failure, missed if sign is None else sign)


class Journal:
    """Writes the state down. Does nothing in a run that ends with its coordinator."""

    def __init__(self, cfg: RunConfig, run_dir: Path, state: RunState, first: bool) -> None:
        """`first`: this is the first coordinator of its run."""
        self.on, self.state, self._path = kept(cfg), state, run_dir / NAME
        if first:
            self._path.unlink(missing_ok=True)  # of an earlier part of a run that was resumed

    def write(self) -> None:
        """Replace the file by the state of now."""
        partial = self._path.with_name(f".{NAME}.partial")
        partial.write_text(json.dumps(encoded(self.state)))
        partial.replace(self._path)

    def note(self, log: EventLog) -> None:
        """Tell the log what has changed within a phase."""
        log.info(event_log.NOTE, encoded(self.state.ongoing))
