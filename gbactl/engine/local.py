"""Engine of `cluster=local`: real processes on this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gbactl.config.engine_interface import EngineInterface

if TYPE_CHECKING:
    from gbactl.engine.local_processes import LaunchContext


class LocalEngine(EngineInterface):
    """Engine that starts processes on the launcher's machine."""

    def train(self, launch: LaunchContext) -> None:
        from gbactl.engine.local_processes import RunProcesses

        launch.follow(RunProcesses(launch))


ENGINE = LocalEngine()
