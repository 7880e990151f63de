"""Engine of `cluster=virtual`: nodes simulated in the launcher on a discrete-event clock (gbactl/simulation)."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from gbactl.config.engine_interface import EngineInterface
from gbactl.config.groups import ClusterConfig

if TYPE_CHECKING:
    from gbactl.engine.local_processes import LaunchContext


class VirtualEngine(EngineInterface):
    """Engine that runs a simulated cluster within the launcher."""

    real: ClassVar[bool] = False

    def threads(self, cluster: ClusterConfig, computing: int) -> int:
        """Return 1: gradients are computed one after the other."""
        return 1

    def train(self, launch: LaunchContext) -> None:
        from gbactl.engine.stop_signals import first_signal_recorded
        from gbactl.nodes.child_main import node_log
        from gbactl.simulation.simulated_run import run_virtual

        with first_signal_recorded(), node_log(launch.run_dir, "virtual"):
            run_virtual(launch.cfg, launch.dataset, launch.run_dir, launch.on_event, launch.look_at_signals)


ENGINE = VirtualEngine()
