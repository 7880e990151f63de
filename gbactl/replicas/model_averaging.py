"""Model averaging: a replica moves alpha of the way towards the mean of all. Two passes over the vector."""

from __future__ import annotations

from typing import ClassVar

from gbactl.kernels.base import Floats
from gbactl.replicas.base import AveragingRule, register


@register("ma")
class ModelAveraging(AveragingRule):
    """Rule of model averaging: w <- (1 - alpha) w + alpha m; the mean is the global model."""

    idle_alone: ClassVar[bool] = True

    def exchange(self, replica: Floats, other: Floats) -> None:
        self.towards(replica, other)
