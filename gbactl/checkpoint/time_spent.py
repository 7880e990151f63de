"""Where the time of a job goes that saves and recovers: seconds by part, as the equations have them. Pure.

All is charged as blocking: meanwhile nobody trains. Costs nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gbactl.checkpoint.overheads import Costs

PARTS = ("saving", "loading", "rescheduling", "again")


@dataclass
class Spent:
    """Seconds of each part, in the unit of the costs. `again`: what was trained, undone and trained once more, of
    which so many `samples`."""

    saving: float = 0.0
    loading: float = 0.0
    rescheduling: float = 0.0
    again: float = 0.0
    samples: int = 0
    alone: int = 0
    everybody: int = 0

    @property
    def total(self) -> float:
        """All parts together."""
        return self.saving + self.loading + self.rescheduling + self.again

    def save(self, costs: Costs, part: float) -> float:
        """A `part` of everything is saved; returns the seconds that it takes."""
        seconds = costs.save * part
        self.saving += seconds
        return seconds

    def one_back(self, costs: Costs) -> float:
        """A lost server alone goes back; returns the seconds until it is there again."""
        self.alone += 1
        return self._returned(costs.load / costs.servers, costs.reschedule)

    def all_back(self, costs: Costs, again: float, samples: int) -> float:
        """Everybody goes back, and `again` seconds of training, `samples` in all, are to be done once more; returns
        the seconds until everybody is there again."""
        self.everybody += 1
        self.again += again
        self.samples += samples
        return self._returned(costs.load, costs.reschedule)

    def _returned(self, load: float, reschedule: float) -> float:
        self.loading += load
        self.rescheduling += reschedule
        return load + reschedule

    def told(self, seconds: float) -> dict[str, Any]:
        """For result.json; `seconds`: of the whole job. Shares are of the job without all this, T of the equations."""
        job = seconds - self.total
        shares = {part: getattr(self, part) / job if job > 0 else 0.0 for part in PARTS}
        return {
            "job_seconds": job, **{f"{part}_seconds": getattr(self, part) for part in PARTS},
            **shares, "total": sum(shares.values()),
            "samples_rolled_back": self.samples, "went_back_alone": self.alone, "everybody_went_back": self.everybody,
        }  # fmt: skip
