"""Server's recovery: a successor loads its shard's checkpoint, or the server goes back with all others.

Loading costs what reading the shard's files costs; heartbeats are answered between two messages.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gbactl.checkpoint.folder import CheckpointFolder
from gbactl.checkpoint.restore import BEGINNING, chain_at, load_newest, load_shard
from gbactl.store.shard import Shard
from gbactl.wire.channel import Channel
from gbactl.wire.frames import Frame
from gbactl.wire.messages import AdoptVersion, CheckpointLoaded, Ping, Pong, ReloadCheckpoint

log = logging.getLogger(__name__)


def load_last(shard: Shard, folder: CheckpointFolder, resumed: Path | None) -> int:
    """Load a new shard's newest checkpoint; without one, the checkpoint from which its run `resumed`, if any.

    Returns the step loaded, or BEGINNING."""
    found = load_newest(shard, folder, lambda why: log.warning("%s", why))
    if found is not None:
        return found.step
    if resumed is None:
        return BEGINNING
    load_shard(shard, chain_at(resumed), shard.dense is not None)
    return shard.version


class RecoveryHandlers:
    """Handlers of a server's recovery messages.

    `stepped` is called after a change of the shard's version; `give_up` ends a save in progress."""

    def __init__(self, shard: Shard, stepped: Callable[[], None], give_up: Callable[[], None]) -> None:
        self.shard, self.stepped, self.give_up = shard, stepped, give_up
        self.handlers: dict[type[Any], Any] = {
            AdoptVersion: self._adopt,
            ReloadCheckpoint: self._reload,
            Ping: self._ping,
        }

    def _adopt(self, _: Channel, message: AdoptVersion, frame: Frame) -> None:
        if message.fresh:
            self.shard.reset_optimizer()
        self.shard.adopt(message.version, message.lost)
        self.stepped()  # workers may have asked before

    def _reload(self, channel: Channel, message: ReloadCheckpoint, frame: Frame) -> None:
        shard = self.shard
        self.give_up()
        shard.restart()
        if message.path:
            load_shard(shard, chain_at(Path(message.path)), shard.dense is not None)
        channel.send(CheckpointLoaded(shard.spec.shard, shard.version if message.path else BEGINNING))

    def _ping(self, channel: Channel, ping: Ping, frame: Frame) -> None:
        channel.send(Pong(self.shard.spec.shard, ping.beat))
