"""Averaging rules: elastic averaging (EASGD), model averaging, blockwise model update filtering (BMUF).

Following the ideas of their papers. EASGD and model averaging take three passes over the vector, BMUF eight.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from gbactl.kernels.base import Floats
from gbactl.replicas import AveragingRule, register


@register("easgd")
class Easgd(AveragingRule):
    """Averaging rule of EASGD, for replica w and centre c: w <- (1 - alpha) w + alpha c, and c likewise towards w.

    Both move by the same difference with opposite signs, so an exchange keeps their sum; trainer and server compute
    the same bits."""

    centralised: ClassVar[bool] = True

    def exchange(self, replica: Floats, other: Floats) -> None:
        self.towards(replica, other)
        np.subtract(other, replica, out=other)


@register("ma")
class ModelAveraging(AveragingRule):
    """Averaging rule of model averaging, for replica w and mean m: w <- (1 - alpha) w + alpha m."""

    idle_alone: ClassVar[bool] = True

    def exchange(self, replica: Floats, other: Floats) -> None:
        self.towards(replica, other)


@register("bmuf")
class Bmuf(AveragingRule):
    """Averaging rule of BMUF, for global model g, mean m, velocity v and replica w.

    d = g - m; v <- mu v + eta d; g <- g - v; w <- (1 - alpha) w + alpha g (nesterov: g - mu v).
    Every trainer keeps the same global model and momentum: 3 floats a parameter.
    g starts as the common initial value of all replicas, or, where that is not known, as the first mean."""

    def __init__(self, params: int, values: Mapping[str, Any]) -> None:
        super().__init__(params, values)
        self.momentum, self.lr = np.float32(values["block_momentum"]), np.float32(values["block_lr"])
        self.nesterov = bool(values["nesterov"])
        self.model: Floats | None = None
        self.velocity: Floats = np.zeros(params, np.float32)
        self._step: Floats = np.empty(params, np.float32)

    def start(self, common: Floats) -> None:
        self.model = common[: self.params].copy()
        self.velocity[:] = 0.0

    def exchange(self, replica: Floats, other: Floats) -> None:
        if self.model is None:
            self.start(other)
        assert self.model is not None
        mean, step, velocity = other[: self.params], self._step, self.velocity
        np.subtract(self.model, mean, out=step)
        np.multiply(step, self.lr, out=step)
        np.multiply(velocity, self.momentum, out=velocity)
        np.add(velocity, step, out=velocity)
        np.subtract(self.model, velocity, out=self.model)
        np.copyto(mean, self.model)
        if self.nesterov:
            np.multiply(velocity, self.momentum, out=step)
            np.subtract(mean, step, out=mean)
        self.towards(replica, other)
