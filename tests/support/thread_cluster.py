"""A cluster of threads as a test uses it: it trains, nodes die or wait where the test says, and it keeps its events."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from gbactl.checkpoint.folder import CheckpointFolder
from gbactl.config import ClusterConfig, ModeConfig, ModelConfig, RunConfig, TrainConfig, check
from gbactl.data.dataset import open_dataset
from gbactl.wire.messages import Event
from tests.support.memory_cluster import run_in_memory
from tests.support.simulated_runs import samples_of


@dataclass
class ThreadCluster:
    """Trains on `data`, below `folder`; `events` are those of the last run that ended.

    Every sample of a run must have one fate, and no more than `most_refused` frames may be refused."""

    data: Path
    folder: Path
    patch: pytest.MonkeyPatch
    most_refused: float = 0
    events: list[Event] = field(default_factory=list)

    def train(self, cfg: RunConfig, below: str | Path = "", wishes: Sequence[Event] = ()) -> dict[str, Any]:
        """Run it to its end, as run_in_memory does; check its accounts and return its result."""
        self.events = []
        result = run_in_memory(cfg, self.data, self.folder / below, wishes, self.events)
        counted, due = result["samples"], samples_of(cfg, open_dataset(self.data))
        assert counted["read"] == counted["trained"] + counted["decayed"] + counted["lost"] == due
        assert result["refused_frames"] <= self.most_refused, result["refused"]
        return result

    def told(self, name: str) -> list[dict[str, Any]]:
        """The fields of the last run's events of one name."""
        return [event.fields for event in self.events if event.name == name]

    def checkpoints(self, below: str = "") -> CheckpointFolder:
        """What a run has saved."""
        return CheckpointFolder(self.folder / below / "checkpoints")

    def before(self, owner: Any, method: str, do: Callable[..., object]) -> None:
        """Have `do` called before every call of a method, with its arguments."""
        plain = getattr(owner, method)

        def called(*args: Any) -> Any:
            do(*args)
            return plain(*args)

        self.patch.setattr(owner, method, called)

    def after(self, owner: Any, method: str, do: Callable[..., object]) -> None:
        """Have `do` called after every call of a method, with its arguments."""
        plain = getattr(owner, method)

        def called(*args: Any) -> Any:
            found = plain(*args)
            do(*args)
            return found

        self.patch.setattr(owner, method, called)


def clustered(mode: str | ModeConfig, cluster: dict[str, Any], **groups: Any) -> RunConfig:
    """Configuration of three workers and two servers with batch norm, dropout and a short last batch.

    `cluster`: more values of the group cluster."""
    mode = ModeConfig(mode) if isinstance(mode, str) else mode
    common: dict[str, Any] = {
        "model": ModelConfig(dim=4, hidden=[8], dropout=0.2, batch_norm=True),
        "train": TrainConfig(global_batch=96, eval_batch=200),
    }
    nodes = ClusterConfig(**{"workers": 3, "servers": 2, **cluster})
    return check(RunConfig(mode=mode, cluster=nodes, seed=5, **{**common, **groups}))
