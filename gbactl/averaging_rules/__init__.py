"""Rules that average replicas of one dense vector: EASGD, model averaging, blockwise model update filtering (BMUF).

The rules follow the ideas of their papers. They are pure arithmetic on float32 vectors: no torch, no I/O, no clock. A
rule gets (replica, centre or mean) and writes both; it does not know where it runs (a background thread, the foreground
every k iterations, virtual time). An exchange of EASGD or model averaging takes three passes over the vector (0.1 ms
each for 0.5 M values), one of BMUF eight.
To add a rule, write a file in this package with a `@register("name")` class, five lines for each mode in
policies/replica_modes.py (which may not import this package), a file in conf/mode/ and a test.
tests/unit/averaging_rules/test_new_rule.py adds one.
"""

from __future__ import annotations

import importlib
import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np

from gbactl.kernels.base import Floats


class AveragingRule(ABC):
    """Averaging rule on one trainer: how an exchange changes the trainer's replica.

    `params`: how many of a vector's first values are parameters; the rest are batch-norm statistics, which are only
    averaged. `values`: the mode's own keys."""

    #: whether `other` is a centre that changes at every exchange (on the servers), or the mean over all trainers
    centralised: ClassVar[bool] = False
    #: whether an exchange changes nothing where there is only one trainer
    idle_alone: ClassVar[bool] = False

    def __init__(self, params: int, values: Mapping[str, Any]) -> None:
        self.params = params
        self.alpha = np.float32(values.get("alpha", 1.0))

    def start(self, common: Floats) -> None:  # noqa: B027  (most rules remember nothing)
        """Start with all replicas equal to the vector `common`, which the caller may overwrite afterwards."""

    @abstractmethod
    def exchange(self, replica: Floats, other: Floats) -> None:
        """Compute an exchange in place: the change to add to the replica, and the new centre or global model.

        Of two vectors f32[n], `replica` is as it was sent and becomes the difference to add to the current replica;
        `other` is the previous centre or the mean and becomes the centre or global model."""

    def towards(self, replica: Floats, target: Floats) -> None:
        """Replace `replica` by alpha x (target - replica), in place."""
        np.subtract(target, replica, out=replica)
        if self.alpha != 1.0:
            np.multiply(replica, self.alpha, out=replica)


_RULES: dict[str, type[AveragingRule]] = {}


def register(name: str) -> Callable[[type[AveragingRule]], type[AveragingRule]]:
    """Class decorator that registers an averaging rule under a name."""

    def wrap(cls: type[AveragingRule]) -> type[AveragingRule]:
        _RULES[name] = cls
        return cls

    return wrap


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


def make(name: str, params: int, values: Mapping[str, Any]) -> AveragingRule:
    """Make the averaging rule of a name. Raises ValueError for an unknown name."""
    if name not in _RULES:
        for module in pkgutil.iter_modules(__path__):
            importlib.import_module(f"{__name__}.{module.name}")
    if name not in _RULES:
        raise ValueError(f"there is no rule {name} among {', '.join(sorted(_RULES))}")
    return _RULES[name](params, values)
