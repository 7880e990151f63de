"""Model averaging: a replica moves alpha of the way towards the mean of all replicas."""

from __future__ import annotations

from typing import ClassVar

from gbactl.kernels.base import Floats
from gbactl.replicas.base import AveragingRule, register


@register("ma")
class ModelAveraging(AveragingRule):
    """Averaging rule of model averaging, for replica w and mean m: w <- (1 - alpha) w + alpha m."""

    idle_alone: ClassVar[bool] = True

    def exchange(self, replica: Floats, other: Floats) -> None:
        self.towards(replica, other)
