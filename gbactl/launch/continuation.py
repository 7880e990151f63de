"""A run that goes on from a checkpoint, seen from the launcher: where it works, and as which MLflow run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gbactl.checkpoint.folder import Chain, Folder, number_of
from gbactl.config import RunConfig, to_dict
from gbactl.coordinator.state import Position
from gbactl.data.dataset import Dataset
from gbactl.launch import resume, rundir

EXPECTED = ("interval", "full_overhead", "partial_overhead", "expected_pls")  # of a job's checkpoints, in its estimate


@dataclass
class Continued:
    """`chain`: the checkpoint, None for a run from the beginning; `same_run`: it goes on in its own directory;
    `tracked`: the MLflow run that it goes on as, "" if that is not known (yet)."""

    chain: Chain | None = None
    same_run: bool = False
    tracked: str = ""

    @classmethod
    def of(cls, cfg: RunConfig, dataset: Dataset, rounds: int) -> Continued:
        """Of a configuration. Raises CheckpointError where a run cannot go on from what it names."""
        if cfg.resume is None:
            return cls()
        chain = resume.find(cfg.resume)
        resume.check(chain, to_dict(cfg), dataset.fingerprint, rounds)
        own = resume.run_of(chain)
        same = cfg.run_dir is None or Path(cfg.run_dir).resolve() == own
        return cls(chain, same, (rundir.tracked_as(own) or "") if same else "")

    def run_dir(self, cfg: RunConfig) -> Path:
        """Where it works: the run's own directory, or a new one if run_dir= names one."""
        return resume.run_of(self.chain) if self.chain is not None and self.same_run else rundir.create(cfg)

    def modes(self, cfg: RunConfig) -> str:
        """By which modes it has gone so far, the one included that it begins in now."""
        mode = cfg.mode.name
        return mode if self.chain is None else Position.read(self.chain.last.position).modes_with(mode)

    def begin(self, path: Path, cfg: RunConfig) -> None:
        """The directory is ours: put what was there aside, and what was saved after the checkpoint away."""
        if self.chain is None or not self.same_run:
            return
        rundir.reopen(path, cfg)
        folder = Folder(self.chain.folder)
        folder.sweep()
        for name in folder.names():
            if number_of(name) > self.chain.last.number:
                folder.remove(name)


def saying(fields: dict[str, Any]) -> str:
    """An event about checkpoints in one line."""
    if fields["state"] == "failed":
        why = f"The checkpoint of step {fields['step']} failed: {fields['why'].rstrip('.')}"
        return f"{why}; training goes on, the next one tries again."
    return str(fields["sentence"])
