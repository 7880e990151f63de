"""Data of the plots, from a run's result.json: AUC after each phase, staleness counts. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple


class ModeSegment(NamedTuple):
    """Consecutive phases of a run in one mode, as ranges of samples and seconds."""

    mode: str
    samples: tuple[float, float]
    seconds: tuple[float, float]


@dataclass(frozen=True)
class Curves:
    """Curves of one run; auc[i] was measured after samples[i] samples and seconds[i] of training and draining.

    `modes`: (mode, first and last sample, first and last second) of all consecutive phases in one mode.
    """

    group: str
    seed: str
    samples: tuple[float, ...]
    seconds: tuple[float, ...]
    auc: tuple[float, ...]
    eps: float | None
    staleness: Mapping[int, int]
    modes: tuple[ModeSegment, ...] = ()

    @property
    def switched(self) -> bool:
        """Whether the run was in more than one mode."""
        return len(self.modes) > 1


def curves_of(group: str, seed: str, result: Mapping[str, Any]) -> Curves:
    """Extract the curves; phases add up, and one without an evaluation adds samples and time but no point."""
    samples = seconds = 0.0
    points: list[tuple[float, float, float]] = []
    modes: list[ModeSegment] = []
    for phase in result.get("phases") or []:
        before = samples, seconds
        samples += phase.get("samples") or 0
        rest = phase.get("closing_seconds", phase.get("drain_seconds"))  # older runs: since the last hand-out
        seconds += (phase.get("seconds") or 0) + (rest or 0)
        _stretch(modes, phase.get("mode"), before, (samples, seconds))
        if phase.get("auc") is not None:
            points.append((samples, seconds, phase["auc"]))
    counts = {int(steps): count for steps, count in (result.get("staleness_histogram") or {}).items()}
    return Curves(
        group=group,
        seed=seed,
        samples=tuple(point[0] for point in points),
        seconds=tuple(point[1] for point in points),
        auc=tuple(point[2] for point in points),
        eps=result.get("eps"),
        staleness=counts,
        modes=tuple(modes),
    )


def _stretch(
    modes: list[ModeSegment], mode: str | None, before: tuple[float, float], after: tuple[float, float]
) -> None:
    """Add a phase, merged into the previous stretch if the mode is the same."""
    if mode is None:
        return
    if modes and modes[-1].mode == mode:
        last = modes.pop()
        before = last.samples[0], last.seconds[0]
    modes.append(ModeSegment(mode, (before[0], after[0]), (before[1], after[1])))


def shares(runs: Sequence[Curves]) -> dict[int, float]:
    """Percentage of the gradients of all runs together, by staleness in steps."""
    total = sum(sum(run.staleness.values()) for run in runs)
    steps = sorted({step for run in runs for step in run.staleness})
    return {step: 100.0 * sum(run.staleness.get(step, 0) for run in runs) / total for step in steps if total}
