"""First pass over an event log: check that it is complete, and collect its phases, pulls and checksums.

Reading costs about 5 us a gradient, and the memory of the whole log.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_origin, get_type_hints

from gbactl.config import RunConfig, check_switch, from_dict
from gbactl.coordinator import event_log
from gbactl.coordinator.event_log import AnnounceRecord, DropRecord, InfoRecord, OrderRecord, Record
from gbactl.errors import ConfigError, EventLogError, TornLogError
from gbactl.policies.policy import names
from gbactl.replay.gradient_recomputation import PulledVersions
from gbactl.wire.messages import BeginPhase

_HEADER = {"config": dict, "data": str, "machine": str, "cpu_flags": str, "torch": str, "threads": int}
_PHASE = {key: get_origin(kind) or kind for key, kind in get_type_hints(BeginPhase).items()}


@dataclass
class PhaseRecord:
    """Phase of a recorded run: its announcement, its configuration, its pulls, each shard's checksum at its end."""

    begin: BeginPhase
    cfg: RunConfig
    pulls: PulledVersions
    whole: dict[int, str] = field(default_factory=dict)


@dataclass
class Recording:
    """Recorded run: the contents of its event log.

    `cfg`: configuration at its start; `now`: that of the phases after what has been read so far. `digests`: (step,
    shard) to the checksum after that step. `ended`: the log is complete. `torn`: a sentence on the truncated record at
    which the log ends, if there is one.
    """

    path: Path
    header: dict[str, Any]
    cfg: RunConfig
    now: RunConfig
    phases: list[PhaseRecord] = field(default_factory=list)
    digests: dict[tuple[int, int], str] = field(default_factory=dict)
    steps: int = 0
    ended: bool = False
    torn: str = ""

    @property
    def shards(self) -> int:
        """Number of servers of the run."""
        return self.cfg.cluster.servers

    def records(self) -> Iterator[Record]:
        """Iterate over the log's records after the header, up to the truncated record if there is one."""
        records = event_log.read(self.path)
        next(records)
        with contextlib.suppress(TornLogError):
            yield from records


def scan(path: Path) -> Recording:
    """Read an event log to its end, or to the truncated record where it was cut off.

    Raises EventLogError on damage or contents that are impossible.
    """
    records = event_log.read(path)
    first = next(records, None)
    if not isinstance(first, InfoRecord) or first.kind != event_log.HEADER:
        raise EventLogError(f"{path} has no header.")
    cfg = _config(path, first.fields)
    recording = Recording(path, first.fields, cfg, cfg)
    try:
        for record in records:
            if recording.ended:
                raise EventLogError(f"{path} goes on after its end record.")
            _note(recording, record)
    except TornLogError as error:
        recording.torn = str(error)
    for phase in recording.phases:
        twice = phase.pulls.repeated()
        if twice is not None:
            raise EventLogError(f"{path} announces batch {twice} of phase {phase.begin.number} twice.")
    return recording


def _config(path: Path, header: dict[str, Any]) -> RunConfig:
    if any(type(header.get(key)) is not kind for key, kind in _HEADER.items()):
        raise EventLogError(f"{path} has a header that a replay cannot use.")
    try:
        cfg = from_dict(header["config"])
    except (ConfigError, TypeError, ValueError) as error:
        raise EventLogError(f"{path} holds a configuration that this gbactl does not know: {error}") from error
    _summed(cfg, cfg)
    if cfg.resume is not None:
        raise EventLogError(
            f"{path} is the event log of a run that was resumed from a checkpoint; such a run cannot be replayed."
        )
    return cfg


def _summed(run: RunConfig, *cfgs: RunConfig) -> None:
    """Raise EventLogError if a phase cannot be replayed: it has replicas, or its summation order is unknown."""
    modes = [phase.mode for cfg in cfgs for phase in cfg.phases]
    replicas = [mode.name for mode in modes if not mode.policy.replayable]
    if replicas:
        raise EventLogError(
            f"A run with phases of mode={replicas[0]} cannot be replayed: replicas are exchanged at no fixed steps. "
            f"Its accounting and checksums in result.json check it instead; runs of {_replayed()} can be replayed."
        )
    known = not run.engine.real or run.collective.name == "shm" or run.processes <= 2
    summed = [mode.name for mode in modes if mode.policy.collective]
    if summed and not known:
        raise EventLogError(
            f"A run with phases of mode={summed[0]} cannot be replayed where {run.collective.name} sums the gradients "
            f"of {run.processes} workers in an order of its own; with collective=shm it can, and runs of {_replayed()} "
            f"can. All of a {summed[0]} run follows from its seed: type the same gbactl train again and compare the "
            "checksums in result.json."
        )


def _replayed() -> str:
    """List the modes of which every run can be replayed, for an error message."""
    *others, last = names(lambda mode: mode.replayable and not mode.collective)
    return f"{', '.join(others)} and {last}"


def _note(recording: Recording, record: Record) -> None:
    if isinstance(record, InfoRecord):
        _note_info(recording, record)
    elif not recording.phases or not recording.phases[-1].begin.training:
        raise EventLogError(f"{recording.path} has a {type(record).__name__} outside of training.")
    elif isinstance(record, AnnounceRecord):
        _check_versions(recording, record)
        recording.phases[-1].pulls.add(record)
    elif isinstance(record, DropRecord):
        recording.phases[-1].pulls.drop(record.batch)
    elif isinstance(record, OrderRecord):
        if record.step != recording.steps:
            raise EventLogError(f"{recording.path} orders step {record.step} where {recording.steps} is due.")
        recording.steps += 1


def _check_versions(recording: Recording, record: AnnounceRecord) -> None:
    versions = (*record.row_versions, *record.dense_versions)
    rows = record.row_versions
    if len(rows) != recording.shards or min(rows) < 0 or min(versions) < -1 or max(versions) > recording.steps:
        raise EventLogError(
            f"{recording.path} announces batch {record.batch} from versions {versions}, which do not all exist at step "
            f"{recording.steps}."
        )


def _note_info(recording: Recording, record: InfoRecord) -> None:
    fields = record.fields
    if record.kind == event_log.PHASE:
        pulls = PulledVersions(recording.shards)
        recording.phases.append(PhaseRecord(_phase(recording, fields), recording.now, pulls))
    elif record.kind == event_log.SWITCH:
        recording.now = _switched(recording, fields)
    elif record.kind == event_log.CHECKSUM:
        _checksum(recording, fields)
    elif record.kind == event_log.SERVER:
        raise EventLogError(
            f"{recording.path} is the event log of a run in which a server was lost (S{fields.get('shard')}, step "
            f"{fields.get('step')}); such a run cannot be replayed: what that server had not saved is gone."
        )
    elif record.kind == event_log.DENSE_LOST:
        raise EventLogError(
            f"{recording.path} is the event log of a run in which a worker failed while the dense gradients of step "
            f"{fields.get('step')} were being summed; such a run cannot be replayed: the log does not say which of "
            "these gradients the sum contains."
        )
    elif record.kind == event_log.END:
        if fields.get("step") != recording.steps:
            raise EventLogError(f"{recording.path} ends at step {fields.get('step')} after {recording.steps} orders.")
        recording.ended = True
    elif record.kind not in (event_log.NOTE, event_log.MOVED, event_log.FAILURE):
        raise EventLogError(f"{recording.path} has a second header.")


def _phase(recording: Recording, fields: dict[str, Any]) -> BeginPhase:
    right = set(fields) == set(_PHASE) and all(type(fields[key]) is kind for key, kind in _PHASE.items())
    if not right or fields["number"] != len(recording.phases) + 1 or fields["first_step"] != recording.steps:
        raise EventLogError(f"{recording.path} begins phase {len(recording.phases) + 1} with {fields}.")
    return BeginPhase(**fields)


def _switched(recording: Recording, fields: dict[str, Any]) -> RunConfig:
    """Return the configuration of the phases after a mode switch."""
    try:
        cfg = recording.cfg.in_mode(fields["mode"])
        check_switch(recording.cfg, cfg)
    except (ConfigError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise EventLogError(f"{recording.path} has an impossible switch to {fields.get('mode')}: {error}") from error
    _summed(recording.cfg, cfg)
    return cfg


def _checksum(recording: Recording, fields: dict[str, Any]) -> None:
    if set(fields) == {"step", "model", "when", "of"}:
        return
    kind = "whole" if "whole" in fields else "digest"
    shard: Any = fields.get("shard")
    step: Any = fields.get("step")
    value: Any = fields.get(kind)
    right = isinstance(shard, int) and isinstance(step, int) and isinstance(value, str)
    if not right or len(fields) != 3 or not recording.phases or shard not in range(recording.shards):
        raise EventLogError(f"{recording.path} has a checksum that says {fields}.")
    if step not in range(-1, recording.steps):
        raise EventLogError(f"{recording.path} has a checksum of step {step} before that step.")
    if kind == "whole":
        recording.phases[-1].whole.setdefault(shard, value)  # the first checksum is that of the training phase
    else:
        recording.digests[step, shard] = value
