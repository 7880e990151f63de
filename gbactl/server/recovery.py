"""A server's part in coming back: it takes the place of one that is gone, or goes back with all others.

Loading costs what reading the shard's files costs; a beat is answered between two messages.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gbactl.checkpoint.folder import Folder
from gbactl.checkpoint.restore import BEGINNING, chain_at, load_newest, load_shard
from gbactl.store.shard import Shard
from gbactl.wire.channel import Channel
from gbactl.wire.frames import Frame
from gbactl.wire.messages import Adopt, Loaded, Ping, Pong, Reload

log = logging.getLogger(__name__)


def load_last(shard: Shard, folder: Folder, resumed: Path | None) -> int:
    """Put a shard that has just begun where its newest checkpoint is; without one where its run was `resumed`, or
    leave it. Returns that step, or BEGINNING."""
    found = load_newest(shard, folder, lambda why: log.warning("%s", why))
    if found is not None:
        return found.step
    if resumed is None:
        return BEGINNING
    load_shard(shard, chain_at(resumed), shard.dense is not None)
    return shard.version


class RecoverySide:
    """A server's handlers of messages of recovery. `stepped`: the shard is of another version; `give_up`: what is being
    saved is not finished."""

    def __init__(self, shard: Shard, stepped: Callable[[], None], give_up: Callable[[], None]) -> None:
        self.shard, self.stepped, self.give_up = shard, stepped, give_up
        self.handlers: dict[type[Any], Any] = {Adopt: self._adopt, Reload: self._reload, Ping: self._ping}

    def _adopt(self, _: Channel, message: Adopt, frame: Frame) -> None:
        if message.fresh:
            self.shard.reset_optimizer()
        self.shard.adopt(message.version, message.lost)
        self.stepped()  # workers may have asked before

    def _reload(self, channel: Channel, message: Reload, frame: Frame) -> None:
        shard = self.shard
        self.give_up()
        shard.restart()
        if message.path:
            load_shard(shard, chain_at(Path(message.path)), shard.dense is not None)
        channel.send(Loaded(shard.spec.shard, shard.version if message.path else BEGINNING))

    def _ping(self, channel: Channel, ping: Ping, frame: Frame) -> None:
        channel.send(Pong(self.shard.spec.shard, ping.beat))
