"""Journal for a coordinator failover: the state when nothing was in flight, and the event log from there on.

coordinator.json in the run directory is written atomically between two phases. What changes within a
phase and is no step of it (failed nodes, failures, checkpoints) is in the log as a note. Costs a small file per phase
and a write for each record of the log that another node acts upon (2 us).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import msgspec

from gbactl.config import RunConfig
from gbactl.coordinator import event_log
from gbactl.coordinator.event_log import EventLog, InfoRecord, Record
from gbactl.coordinator.state import PhaseState, RunState, decoded, encoded
from gbactl.errors import EventLogError

NAME = "coordinator.json"


def kept(cfg: RunConfig) -> bool:
    """Whether a run survives a coordinator failure; one in virtual time needs no journal for that."""
    return cfg.place.real and cfg.cluster.lost_coordinator == "replace"


@dataclass
class JournalState:
    """State that a failed coordinator left: the last written state updated by later notes, and the log since then.

    `end`: offset of the log's last complete record; `term` of the successor; `missed`: when the failure was detected,
    in seconds of the machine's clock; `failure`: its kind; `sign`: the last sign of life."""

    state: RunState
    records: list[Record]
    end: int
    term: int = 1
    missed: float = 0.0
    failure: str = "death"
    sign: float = 0.0

    @classmethod
    def of(
        cls, run_dir: Path, term: int, missed: float, failure: str = "death", sign: float | None = None
    ) -> JournalState:
        """Read what a run's coordinator left. Raises EventLogError where it cannot be used."""
        try:
            state = decoded(json.loads((run_dir / NAME).read_text()), RunState)
        except (OSError, ValueError, TypeError, msgspec.ValidationError) as error:
            raise EventLogError(f"{run_dir / NAME} cannot be used ({error!r}).") from error
        records, end = event_log.tail(run_dir / "events.log", state.stood.offset)
        for record in records:
            if isinstance(record, InfoRecord) and record.kind == event_log.NOTE:
                state.ongoing = decoded(record.fields, PhaseState)
        return cls(state, records, end, term, missed, failure, missed if sign is None else sign)


class Journal:
    """Writer of the coordinator's state. Does nothing in a run that ends with its coordinator."""

    def __init__(self, cfg: RunConfig, run_dir: Path, state: RunState, first: bool) -> None:
        """Open the journal of a run. `first`: this is the run's first coordinator."""
        self.on, self.state, self._path = kept(cfg), state, run_dir / NAME
        if first:
            self._path.unlink(missing_ok=True)  # left by an earlier part of a resumed run

    def write(self) -> None:
        """Replace the file by the current state."""
        partial = self._path.with_name(f".{NAME}.partial")
        partial.write_text(json.dumps(encoded(self.state)))
        partial.replace(self._path)

    def note(self, log: EventLog) -> None:
        """Log what has changed within a phase."""
        log.info(event_log.NOTE, encoded(self.state.ongoing))
