"""A hub that stands for another one: what reliable.py, compression.py and reconnecting.py have in common."""

from __future__ import annotations

from collections.abc import Mapping

from gbactl.wire.channel import Hub


class AroundHub:
    """`hub` does what is not changed here. `counts`: what was done to messages on their way, by name."""

    def __init__(self, hub: Hub) -> None:
        self.hub = hub
        self.address, self.refused, self.traffic = hub.address, hub.refused, hub.traffic
        self.counts: Mapping[str, int] = getattr(hub, "counts", {})

    def now(self) -> float:
        """See channel.Hub."""
        return self.hub.now()

    def close(self) -> None:
        """See channel.Hub."""
        self.hub.close()
