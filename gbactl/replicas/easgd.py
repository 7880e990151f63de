"""Elastic averaging: replica and centre move alpha of the way towards each other; following the idea of EASGD.

Both move by the same difference with opposite signs, so an exchange keeps their sum. Three passes over the vector.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from gbactl.kernels.base import Floats
from gbactl.replicas.base import AveragingRule, register


@register("easgd")
class Easgd(AveragingRule):
    """Averaging rule of EASGD, for replica w and centre c: w <- (1 - alpha) w + alpha c, and c likewise towards w.

    Trainer and server compute the same bits."""

    centralised: ClassVar[bool] = True

    def exchange(self, replica: Floats, other: Floats) -> None:
        self.towards(replica, other)
        np.subtract(other, replica, out=other)
