"""What every kind of fault is made of: typed fields, a check, the factor it asks for. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, TypeVar

from gbactl.errors import ConfigError
from gbactl.faults import random_streams
from gbactl.typed import Within

Workers = list[int] | int | float | str
Slower = Annotated[float, Within(at_least=1, at_most=1e6)]  # 4: four times slower
Sigma = Annotated[float, Within(above=0, at_most=10)]
Shape = Annotated[float, Within(above=1, at_most=1000)]  # of a Pareto distribution that has a mean
KINDS: dict[str, type[Fault]] = {}


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One plan of the list. `workers`: indices, "all", how many, or a share like 1/8; `servers` likewise.

    A plan that names servers and no workers is for servers alone."""

    kind: ClassVar[str] = ""
    slows: ClassVar[bool] = True
    workers: Workers | None = "all"
    servers: Workers | None = None

    def check(self, where: str) -> None:
        """Raise ConfigError for values that cannot be; `where` is for instance faults.plans[0]."""

    def at(self, key: int, turn: int, seconds: float) -> float:
        """The factor, at least 1, of the batch `turn` of a worker begun `seconds` into training.

        `key` is the worker's own in this plan; what is random depends on (key, turn) alone.
        """
        return 1.0

    def of(self, worker: int) -> Fault:
        """What of the fault is a worker's own."""
        return self

    def told(self) -> dict[str, Any]:
        """As a user types it, with the defaults filled in."""
        values = {typed(name): value for name, value in dataclasses.asdict(self).items() if value is not None}
        return {"kind": self.kind, **values}


F = TypeVar("F", bound=type[Fault])


def kind(name: str) -> Callable[[F], F]:
    """Class decorator: make a fault known as `kind: name`."""

    def register(cls: F) -> F:
        cls.kind = name
        KINDS[name] = cls
        return cls

    return register


def require(ok: bool, message: str) -> None:
    if not ok:
        raise ConfigError(message)


def window(where: str, begin: float, end: float | None) -> None:
    require(end is None or end > begin, f"{where}.until={end} must be later than from={begin}, or null: to the end.")


def typed(field: str) -> str:
    """`from_` is typed `from`."""
    return field.rstrip("_")


def drawn(where: str, distribution: str, sigma: float | None, shape: float | None) -> None:
    """Raise ConfigError for a distribution that is not known, or for another one's parameter."""
    names = tuple(random_streams.DISTRIBUTIONS)
    require(
        distribution in names,
        f"{where}.distribution={distribution} is not known; type one of: {', '.join(names)}.",
    )
    for name, value, owner in (("sigma", sigma, "lognormal"), ("shape", shape, "pareto")):
        require(value is None or distribution == owner, f"{where}.{name} belongs to distribution: {owner}.")
