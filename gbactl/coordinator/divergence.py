"""When a training counts as diverged, by the loss that comes with a gradient. Pure; costs a comparison a gradient."""

from __future__ import annotations

import math
from dataclasses import dataclass

FACTOR = 1000.0
ADVICE = "type a smaller optim.lr, or train.on_divergence=continue to train on."
LEAST_FIRST = math.log(2.0)  # nats: the loss of a model that gives every click one half


@dataclass
class LossLimit:
    """A loss is compared with `first`, the run's first one (at least LEAST_FIRST: a tiny first loss sets no limit)."""

    first: float | None = None

    def passed(self, loss: float) -> bool:
        """Whether a gradient with this loss is one of a model that has diverged."""
        if not math.isfinite(loss):
            return True
        if self.first is None:
            self.first = max(loss, LEAST_FIRST)
        return loss > FACTOR * self.first

    def sentence(self, worker: int, step: int, loss: float, rate: float) -> str:
        """What happened and what to type; `rate`: the learning rate in force."""
        first = "" if self.first is None else f", {FACTOR:,.0f} times the first one is {FACTOR * self.first:.4g}"
        return (
            f"The model diverged: the loss of W{worker} at step {step} is {loss:.4g}{first}, at a learning rate of "
            f"{rate:g}; {ADVICE}"
        )
