"""Workers in the place of those that are gone: started as soon as the coordinator says so, again if they fail.

One look at each of them four times a second.
"""

from __future__ import annotations

from collections.abc import Callable

from gbactl.cluster.messages import Event
from gbactl.launch.children import Children

MOST_TRIES = 3


class Successors:
    """Listens to the coordinator's events; `say` shows a sentence."""

    def __init__(self, children: Children, say: Callable[[str], None]) -> None:
        self.children, self.say = children, say
        self._tries: dict[str, int] = {}

    def heard(self, event: Event) -> None:
        """Act on what concerns those that are gone or come."""
        self.children.settled |= event.name != "beat"
        name = event.fields.get("process")
        if event.name == "lost" and isinstance(name, str):
            if event.fields["epoch"] < self.children.epoch(name):
                return  # told again by another coordinator
            self.children.bury(name, kill=bool(event.fields.get("shared")))
            if event.fields.get("replaced"):
                self._tries[name] = 1
                self.children.succeed(name)
        elif event.name == "joined" and isinstance(name, str):
            self._tries.pop(name, None)
        elif event.name == "result":
            for late in self._tries:
                self.children.bury(late, kill=True)
            self._tries.clear()

    def look(self) -> None:
        """Start another one where one ended before it had joined."""
        for name, tries in list(self._tries.items()):
            child = next((child for child in self.children.running if child.name == name), None)
            if child is None or child.process.poll() is None:
                continue
            self.children.bury(name)
            if tries == MOST_TRIES:
                self.say(f"  {name} could not be replaced in {tries} tries; look into {child.log}.")
                del self._tries[name]
            else:
                self._tries[name] = tries + 1
                self.children.succeed(name)
