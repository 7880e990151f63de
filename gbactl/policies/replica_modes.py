"""Policies of the replica modes, following ShadowSync: every worker is a trainer with its own dense replica.

Batches go to any worker at once, and embedding gradients are applied one by one as in `async`; the dense step is the
trainer's own. The rule that averages the replicas (gbactl/averaging_rules/) is only named here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

from gbactl.checked_dataclasses import Bounds, Count, NumberOrInfinity, Processes, Share, ShareBelowOne
from gbactl.policies.async_and_bsp import AsyncPolicy
from gbactl.policies.policy import Grant, PolicyOptions


@dataclass(frozen=True)
class ReplicaOptions(PolicyOptions):
    """Options of all replica modes. `hogwild_threads`: compute threads on a trainer's replica."""

    hogwild_threads: Processes = 1


@dataclass(frozen=True)
class LocalSgdOptions(ReplicaOptions):
    """Options of `local_sgd`. `k`: number of a trainer's local iterations, over all threads, between two averagings."""

    k: Count = 30


@dataclass(frozen=True)
class AlphaOptions(ReplicaOptions):
    """Options with `alpha`: how far a replica moves towards the centre or mean at an exchange, from 0 to 1."""

    alpha: Share = 0.5


@dataclass(frozen=True)
class ForegroundOptions(AlphaOptions):
    """Options of the modes that exchange in the foreground. `k`: local iterations between two exchanges."""

    k: Count = 30


@dataclass(frozen=True)
class ShadowOptions(AlphaOptions):
    """Options of the modes that exchange in the background. `shadow_interval`: seconds between two exchanges.

    0: without pause; inf: no exchange.
    With a centre, trainers are staggered over the interval."""

    shadow_interval: NumberOrInfinity = 0.0


@dataclass(frozen=True)
class BlockOptions(PolicyOptions):
    """Options of the BMUF modes: `block_momentum` and `block_lr` of the global model, `nesterov`."""

    block_momentum: ShareBelowOne = 0.5
    block_lr: Annotated[float, Bounds(above=0, at_most=1000)] = 1.0
    nesterov: bool = False


@dataclass(frozen=True)
class ForegroundBlockOptions(BlockOptions, ForegroundOptions):
    """Options of `fr_bmuf`."""


@dataclass(frozen=True)
class ShadowBlockOptions(BlockOptions, ShadowOptions):
    """Options of `shadow_bmuf`."""


class ReplicaPolicy(AsyncPolicy):
    """Policy of a replica mode. `rule` (gbactl.averaging_rules) averages replicas, in the background if `shadow`."""

    home: ClassVar[str] = "replicas"
    replayable: ClassVar[bool] = False  # exchanges happen at no fixed steps
    rule: ClassVar[str] = ""
    shadow: ClassVar[bool] = False

    def grant(self, batch: int, token: int) -> Grant:
        """Make the grant of a batch: its rows are pulled after every step ordered so far, the worker's own included."""
        grant = super().grant(batch, token)
        share = grant.samples / self.phase.local_batch
        return replace(grant, after=self.step, divisor=share, progress=self.ledger.finished)


class ShadowEasgd(ReplicaPolicy):
    """Policy of `shadow_easgd`: elastic averaging with a centre on the servers, in the background."""

    number: ClassVar[int | None] = 6
    Options: ClassVar[type[PolicyOptions]] = ShadowOptions
    rule, shadow = "easgd", True


class ForegroundEasgd(ReplicaPolicy):
    """Policy of `fr_easgd`: elastic averaging with a centre every k iterations, while the trainer's threads stop."""

    number: ClassVar[int | None] = 9
    Options: ClassVar[type[PolicyOptions]] = ForegroundOptions
    rule = "easgd"


class ShadowMa(ReplicaPolicy):
    """Policy of `shadow_ma`: model averaging in the background."""

    number: ClassVar[int | None] = 7
    Options: ClassVar[type[PolicyOptions]] = ShadowOptions
    rule, shadow, collective = "ma", True, True


class ForegroundMa(ReplicaPolicy):
    """Policy of `fr_ma`: model averaging every k local iterations, while the trainer's threads stop."""

    number: ClassVar[int | None] = 10
    Options: ClassVar[type[PolicyOptions]] = ForegroundOptions
    rule, collective = "ma", True


class LocalSgd(ReplicaPolicy):
    """Policy of `local_sgd`: every k local iterations each replica becomes the mean of all."""

    number: ClassVar[int | None] = 12
    Options: ClassVar[type[PolicyOptions]] = LocalSgdOptions
    rule, collective = "ma", True


class ShadowBmuf(ReplicaPolicy):
    """Policy of `shadow_bmuf`: blockwise model update filtering in the background."""

    number: ClassVar[int | None] = 8
    Options: ClassVar[type[PolicyOptions]] = ShadowBlockOptions
    rule, shadow, collective = "bmuf", True, True


class ForegroundBmuf(ReplicaPolicy):
    """Policy of `fr_bmuf`: blockwise model update filtering every k iterations, while the trainer's threads stop."""

    number: ClassVar[int | None] = 11
    Options: ClassVar[type[PolicyOptions]] = ForegroundBlockOptions
    rule, collective = "bmuf", True
