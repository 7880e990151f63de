"""A server's part in coming back: it takes the place of one that is gone, or goes back with all others.

Loading costs what reading the shard's files costs; a beat is answered between two messages.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gbactl.checkpoint.folder import Folder
from gbactl.checkpoint.restore import chain_at, load_newest, load_shard
from gbactl.store.shard import Shard
from gbactl.wire.channel import Channel
from gbactl.wire.frames import Frame
from gbactl.wire.messages import Adopt, Loaded, Ping, Pong, Reload

if TYPE_CHECKING:
    from gbactl.server.core import Server

BEGINNING = -1  # the step of what no checkpoint has
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


class Comeback:
    """Adds its handlers to a server's."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.handlers: dict[type[Any], Any] = {Adopt: self._adopt, Reload: self._reload, Ping: self._ping}

    def _adopt(self, _: Channel, message: Adopt, frame: Frame) -> None:
        shard = self.server.shard
        if message.fresh:
            shard.reset_optimizer()
        shard.adopt(message.version, message.lost)
        self.server.stepped()  # workers may have asked before

    def _reload(self, channel: Channel, message: Reload, frame: Frame) -> None:
        server, shard = self.server, self.server.shard
        if server.saver is not None:
            server.saver.give_up()
        shard.restart()
        if message.path:
            load_shard(shard, chain_at(Path(message.path)), shard.dense is not None)
        channel.send(Loaded(server.index, shard.version if message.path else BEGINNING))

    def _ping(self, channel: Channel, ping: Ping, frame: Frame) -> None:
        channel.send(Pong(self.server.index, ping.beat))
