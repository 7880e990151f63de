"""Modes whose workers are trainers, each with a dense replica of its own, following the idea of ShadowSync.

Batches go to anyone at once, and embedding gradients are applied one by one as in `async`; the dense step is the
trainer's own. What keeps the replicas together (gbactl/replicas/) is named here and decided elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

from gbactl.policies.async_ps import AsyncPolicy
from gbactl.policies.base import PolicyOptions, register
from gbactl.policies.records import Grant
from gbactl.typed import Count, NumberOrInfinity, Processes, Share, ShareBelowOne, Within


@dataclass(frozen=True)
class ReplicaOptions(PolicyOptions):
    """`hogwild_threads`: compute threads on one replica."""

    hogwild_threads: Processes = 1


@dataclass(frozen=True)
class LocalSgdOptions(ReplicaOptions):
    """`k`: local iterations, of all a trainer's threads, between two averagings."""

    k: Count = 30


@dataclass(frozen=True)
class AlphaOptions(ReplicaOptions):
    """`alpha`: how far a replica goes towards the centre or mean at an exchange; 0: not at all, 1: all the way."""

    alpha: Share = 0.5


@dataclass(frozen=True)
class ForegroundOptions(AlphaOptions):
    """`k`: as in LocalSgdOptions."""

    k: Count = 30


@dataclass(frozen=True)
class ShadowOptions(AlphaOptions):
    """`shadow_interval`: seconds between two exchanges; 0: without pause, inf: none. With a centre, trainers spread
    over it: they do not come all at once."""

    shadow_interval: NumberOrInfinity = 0.0


@dataclass(frozen=True)
class BlockOptions(PolicyOptions):
    """BMUF's own: `block_momentum` mu, `block_lr` eta, `nesterov` (replicas follow the model one step ahead)."""

    block_momentum: ShareBelowOne = 0.5
    block_lr: Annotated[float, Within(above=0, at_most=1000)] = 1.0
    nesterov: bool = False


@dataclass(frozen=True)
class ForegroundBlockOptions(BlockOptions, ForegroundOptions):
    """What fr_bmuf has."""


@dataclass(frozen=True)
class ShadowBlockOptions(BlockOptions, ShadowOptions):
    """What shadow_bmuf has."""


class ReplicaPolicy(AsyncPolicy):
    """`rule` keeps the replicas together (see gbactl.replicas), in the background if `shadow`."""

    home: ClassVar[str] = "replicas"
    replayable: ClassVar[bool] = False  # replicas meet when they meet
    rule: ClassVar[str] = ""
    shadow: ClassVar[bool] = False

    def take(self, worker: int) -> Grant | None:
        """The next batch; its rows are read after every step ordered so far, so nobody misses its own last one."""
        grant = super().take(worker)
        if grant is None:
            return None
        share = grant.samples / self.phase.local_batch
        full = replace(grant, after=self.step, divisor=share, progress=self.ledger.finished)
        return self._lease(worker, full)  # whole, for a coordinator that tells of it again


@register("shadow_easgd", 6)
class ShadowEasgd(ReplicaPolicy):
    """Elastic averaging with a centre on the servers, in the background."""

    Options: ClassVar[type[PolicyOptions]] = ShadowOptions
    rule, shadow = "easgd", True


@register("fr_easgd", 9)
class ForegroundEasgd(ReplicaPolicy):
    """The same every k iterations, while the trainer stands still."""

    Options: ClassVar[type[PolicyOptions]] = ForegroundOptions
    rule = "easgd"


@register("shadow_ma", 7)
class ShadowMa(ReplicaPolicy):
    """Model averaging in the background."""

    Options: ClassVar[type[PolicyOptions]] = ShadowOptions
    rule, shadow, collective = "ma", True, True


@register("fr_ma", 10)
class ForegroundMa(ReplicaPolicy):
    """The same every k iterations."""

    Options: ClassVar[type[PolicyOptions]] = ForegroundOptions
    rule, collective = "ma", True


@register("local_sgd", 12)
class LocalSgd(ReplicaPolicy):
    """Model averaging every k iterations, all the way to the mean."""

    Options: ClassVar[type[PolicyOptions]] = LocalSgdOptions
    rule, collective = "ma", True


@register("shadow_bmuf", 8)
class ShadowBmuf(ReplicaPolicy):
    """Blockwise model update filtering in the background."""

    Options: ClassVar[type[PolicyOptions]] = ShadowBlockOptions
    rule, shadow, collective = "bmuf", True, True


@register("fr_bmuf", 11)
class ForegroundBmuf(ReplicaPolicy):
    """The same every k iterations."""

    Options: ClassVar[type[PolicyOptions]] = ForegroundBlockOptions
    rule, collective = "bmuf", True
