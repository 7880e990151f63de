"""Emulated job that saves and fails without training, against which the equations of partial recovery are checked.

It counts what the equations only expect, by the rules of cluster=virtual and with failures from the same fault plans.
Seeded. Costs a few microseconds a save or failure.
"""

from __future__ import annotations

from dataclasses import dataclass

from gbactl.checkpoint.costs_and_interval import JobCosts, SaveSchedule
from gbactl.checkpoint.failure_cost_counters import CostSeconds, PlsCounter
from gbactl.config import FaultsConfig
from gbactl.faults.fault_plan import FaultInjector, FaultPlan

SAMPLES = 10**12  # samples of an emulated job: enough to resolve the share of lost ones


@dataclass(frozen=True)
class EmulationResult:
    """Result of one emulated job; `overhead` is relative to the job's length without saves and failures."""

    overhead: float
    pls: float
    failures: int
    saves: int
    spent: CostSeconds


def by_distribution(costs: JobCosts, seed: int, distribution: str, shape: float | None = None) -> FaultInjector:
    """Build an injector of single server failures with the mean time between failures of `costs`."""
    plan = {
        "kind": "kill", "servers": "all", "mtbf": costs.between_failures, "distribution": distribution, "shape": shape,
    }  # fmt: skip
    return FaultInjector(FaultPlan(FaultsConfig(plans=[plan]), seed, 1, costs.servers))


class Emulation:
    """Emulated job with saves and server failures; its times are in the unit of the costs."""

    def __init__(self, costs: JobCosts, rhythm: SaveSchedule, recovery: str, injector: FaultInjector) -> None:
        """Set up a job with full or partial `recovery`.

        Partial: a lost server alone goes back to its checkpoint; full: every server does."""
        self.costs, self.rhythm, self.partial, self.injector = costs, rhythm, recovery == "partial", injector
        self.spent, self.pls = CostSeconds(), PlsCounter(SAMPLES, costs.servers)
        self.clock = self.trained = self.saved_at = 0.0
        self.saves = 0
        self._due = rhythm.seconds_between

    def run(self) -> EmulationResult:
        """Run the job to the end of its training."""
        while True:
            event = min(self._due, self.injector.next_seconds)
            left = self.costs.job - self.trained
            if event >= self.clock + left:
                break
            self._train(max(0.0, event - self.clock))
            if self.injector.next_seconds <= self.clock:
                self._fail()
            else:
                self._save()
        self._train(self.costs.job - self.trained)
        failures = self.spent.alone + self.spent.everybody
        return EmulationResult(self.spent.total / self.costs.job, self.pls.total, failures, self.saves, self.spent)

    def _train(self, seconds: float) -> None:
        self.clock += seconds
        self.trained += seconds

    def _save(self) -> None:
        self.saves += 1
        kind = self.rhythm.kind(self.saves)
        self._due = self.clock + self.rhythm.seconds_between
        self.clock += self.spent.save(self.costs, 1.0 if kind == "whole" else 1.0 / self.rhythm.parts)
        self.saved_at = self.trained
        if kind != "chosen":
            self.pls.record_save(self._samples)

    @property
    def _samples(self) -> int:
        return round(SAMPLES * self.trained / self.costs.job)

    def _fail(self) -> None:
        for injection in self.injector.due(0, self.clock):
            if self.partial:
                self.pls.count_lost(int(injection.process[1:]), self._samples)
                self.clock += self.spent.add_partial_recovery(self.costs)
            else:
                again = self.trained - self.saved_at
                self.trained = self.saved_at
                self.spent.add_repeated_training(again, round(SAMPLES * again / self.costs.job))
                self.clock += self.spent.add_full_recovery(self.costs)
                self._due = self.clock + self.rhythm.seconds_between


def emulate(
    costs: JobCosts, rhythm: SaveSchedule, recovery: str, seed: int,
    distribution: str = "exponential", shape: float | None = None,
) -> EmulationResult:  # fmt: skip
    """Emulate one job whose failures follow a distribution. Raises ConfigError for an unknown distribution."""
    return Emulation(costs, rhythm, recovery, by_distribution(costs, seed, distribution, shape)).run()
