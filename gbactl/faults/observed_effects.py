"""Observed effects of a fault plan: injected and measured slow-downs, and when each fault acted. Pure.

`injected`: the worker's stretched seconds over what they would be without the plan's factors. `observed`: its seconds
per sample over those of the median worker without a fault, whatever the plan says. Workers that are pinned to the same
core are preferred for the median, since they share its load. Where every worker has a fault, their batches that were
hardly slowed, if at all, are used instead; without such batches `observed` is unknown. `acted`: which plan acted on
which process, and when. A gradient costs 2 us.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gbactl.faults.cpu_hogs import hogged, worker_cores
from gbactl.faults.fault_kinds import KINDS, CpuHog, Hang, ProcessFailure
from gbactl.faults.fault_plan import FaultPlan
from gbactl.faults.slowdown_waits import FaultRecord, add_acted, server_slowdowns

WARM_UP = 3  # a worker's first batches touch memory for the first time and are ignored
CLOCK_SECONDS = 1e-9  # shorter times are below a clock's resolution and ignored
CALM, CALM_BATCHES = 1.25, 10
LATE = (0.0, 0.02, -0.02, 0.1, -0.1, 0.5, -0.5)  # possible delays in seconds until a batch is reported
RECENT = 16  # batches in the current rate: a machine's rate drifts by a fifth within seconds
MOST_LINES, MOST_NAMES = 5, 4
MOMENTS = {"from": "from {:g} s", "time": "at {:g} s", "step": "at step {:g}", "mtbf": "every {:g} s on average"}


@dataclass
class _Sums:
    """Sums over a worker's batches: number, measured seconds, seconds without the injected slow-down, samples."""

    batches: int = 0
    seconds: float = 0.0
    unslowed: float = 0.0
    samples: int = 0
    recent: float = 0.0  # seconds per sample without the factors, with most weight on the last batches

    def add(self, seconds: float, slowdown: float, samples: int) -> None:
        self.batches += 1
        self.seconds += seconds
        self.unslowed += seconds / slowdown
        self.samples += samples
        self.recent += (seconds / slowdown / samples - self.recent) / min(self.batches, RECENT)


class ObservedBatches:
    """Statistics of the workers' batch times under a fault plan.

    `hogged`: workers whose CPU a competing process takes; `cores`: each worker's, if pinned; `clock`: seconds since
    training began."""

    def __init__(
        self, plan: FaultPlan, hogged: Collection[int] = (), cores: Sequence[int] = (),
        clock: Callable[[], float] = lambda: 0.0,
    ) -> None:  # fmt: skip
        self.plan, self.hogged, self.cores, self.clock = plan, frozenset(hogged), cores, clock
        self.acted = FaultRecord()
        self._last = 0.0  # time of the last gradient
        self._began: dict[int, float] = {}  # start of each worker's first batch
        self.faulty = plan.slowed | self.hogged
        self._full_batch = 1  # a short batch takes longer per sample, and is ignored too
        self._counts: dict[int, int] = {}
        self._workers: dict[int, _Sums] = {}
        self._hardly_slowed: dict[int, _Sums] = {}

    @classmethod
    def of(cls, plan: FaultPlan, pinned: bool, clock: Callable[[], float] = lambda: 0.0) -> ObservedBatches | None:
        """Create the statistics of a run; None if its fault plan is empty.

        `pinned`: whether its workers are pinned to cores of this host."""
        if not plan.faults:
            return None
        return cls(plan, hogged(plan, pinned), worker_cores(plan, pinned), clock)

    def add(self, worker: int, seconds: float, slowdown: float, samples: int) -> None:
        """Record a gradient of `samples` that took `seconds` in all, slowed by the factor `slowdown`."""
        seen = self._counts[worker] = self._counts.get(worker, 0) + 1
        self._note(worker, seen - 1, seconds, slowdown)
        self._full_batch = max(self._full_batch, samples)
        if seen <= WARM_UP or samples < self._full_batch or seconds < CLOCK_SECONDS:
            return
        self._workers.setdefault(worker, _Sums()).add(seconds, slowdown, samples)
        if slowdown <= CALM and worker not in self.hogged:
            self._hardly_slowed.setdefault(worker, _Sums()).add(seconds, slowdown, samples)

    def _note(self, worker: int, number: int, seconds: float, slowdown: float) -> None:
        """Record which faults slowed a worker's batch, and when."""
        end = self._last = self.clock()
        began = self._began.setdefault(worker, end - seconds)
        if slowdown <= 1.0:
            return
        process = f"W{worker}"
        for index, factor in self._acting_faults(process, number, end - seconds - began, slowdown):
            self.acted.add(index, process, max(0.0, end - seconds), end, factor)

    def _acting_faults(self, process: str, number: int, seconds: float, slowdown: float) -> list[tuple[int, float]]:
        """Return (index, factor) of the faults that slowed a batch.

        Where a process has several plans, these are the ones whose product is the factor at about the batch's start."""
        indexes = self.plan.fault_indexes(process)
        if len(indexes) == 1:
            return [(indexes[0], slowdown)]
        for late in LATE:
            found = self.plan.acting_faults(process, number, max(0.0, seconds + late))
            if math.isclose(math.prod(factor for _, factor in found), slowdown, rel_tol=1e-6):
                return found
        return []

    def note_message_faults(self, indexes: Collection[int]) -> None:
        """Record that message faults are active now. `indexes`: their indexes in the fault plan."""
        now = self.clock()
        for index in indexes:
            for worker in self.plan.chosen[index]:
                self.acted.add(index, f"W{worker}", now, now)

    def reference(self, worker: int) -> float | None:
        """Return the seconds per sample that a worker would need without faults; None if unknown."""
        return self._unslowed_rate(worker, {w: sums.unslowed / sums.samples for w, sums in self._hardly_slowed.items()})

    def _unslowed_rate(self, worker: int, rates: Mapping[int, float]) -> float | None:
        calm = {w: rate for w, rate in rates.items() if self._hardly_slowed[w].batches >= CALM_BATCHES}
        same_core = {w: value for w, value in calm.items() if self.cores and self.cores[w] == self.cores[worker]}
        for found in (same_core, calm):
            undisturbed = [value for w, value in found.items() if w not in self.faulty]
            if found:
                return statistics.median(undisturbed or found.values())
        return None

    def unslowed_seconds(self, worker: int) -> float:
        """Return the current seconds per sample of workers without faults, the reference for slow-downs; 0 if unknown.

        Not those of the whole run: where the machine gets slower or faster, a slowed worker follows."""
        if worker not in self.plan.slowed or not any(w not in self.faulty for w in self._hardly_slowed):
            return 0.0
        return self._unslowed_rate(worker, {w: sums.recent for w, sums in self._hardly_slowed.items()}) or 0.0

    def summary(
        self, counters: Mapping[str, Mapping[str, int]] | None = None, resumed_at: float = 0.0
    ) -> dict[str, Any]:
        """Build `faults` of result.json: the plan, and injected and observed slow-downs of every affected process.

        `counters`: those of the servers; `resumed_at`: second at which the run was resumed, 0 if it was not."""
        workers = {f"W{worker}": self._worker(worker) for worker in sorted(self.faulty)}
        servers = server_slowdowns(self.plan, counters or {})
        self._add_hogs(resumed_at)
        add_acted(self.acted, counters or {}, resumed_at)
        acted = {"acted": self.acted.to_list()}
        return {"plans": self.plan.to_list(), "workers": workers, **({"servers": servers} if servers else {}), **acted}

    def _add_hogs(self, resumed_at: float) -> None:
        """Record competing processes as active in their whole period, whatever their effect on workers."""
        for index, fault in enumerate(self.plan.faults):
            if isinstance(fault, CpuHog) and (begin := resumed_at + fault.from_) < self._last:
                end = self._last if fault.until is None else min(resumed_at + fault.until, self._last)
                workers = [f"W{worker}" for worker in self.plan.chosen[index]]
                for name in workers or [f"core {core}" for core in fault.cores or ()]:
                    self.acted.add(index, name, begin, end)

    def _worker(self, worker: int) -> dict[str, float | None]:
        sums, reference = self._workers.get(worker), self.reference(worker)
        known = sums is not None and worker not in self.hogged
        injected = sums.seconds / sums.unslowed if sums is not None and known else None
        observed = sums.seconds / sums.samples / reference if sums is not None and reference is not None else None
        error = observed / injected - 1.0 if injected is not None and observed is not None else None
        return {"injected": injected, "observed": observed, "error": error}


def fault_metrics(result: Mapping[str, Any]) -> dict[str, float]:
    """Extract metrics for MLflow: fault_injected/W1 and fault_observed/W1 (or S0), where they are known."""
    faults = result.get("faults") or {}
    processes = {**(faults.get("workers") or {}), **(faults.get("servers") or {})}
    return {
        f"fault_{name}/{process}": values[name]
        for process, values in processes.items()
        for name in ("injected", "observed")
        if values.get(name) is not None
    }


def with_injected(faults: Mapping[str, Any], injected: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Add the kills and hangs carried out, and the faults that never acted, to `faults` of result.json."""
    more = [
        {"plan": entry["plan"], "process": entry["process"], "at_s": entry["at"], "seconds": entry["seconds"]}
        for entry in injected if entry["done"]
    ]  # fmt: skip
    acted = [*faults["acted"], *more]
    acted_indexes = {entry["plan"] for entry in acted}
    return {
        **faults,
        "acted": acted,
        "never": [index for index in range(len(faults["plans"])) if index not in acted_indexes],
    }


def fault_lines(result: Mapping[str, Any]) -> list[str]:
    """Describe the faults that acted and, in the last line, those that never acted; [] for a run without faults."""
    faults = result.get("faults") or {}
    if "never" not in faults:
        return []
    counts = result.get("messages") or {}
    found = [line for index, plan in enumerate(faults["plans"]) for line in _lines_of(index, plan, faults, counts)]
    never = [_named(index, faults["plans"][index]) for index in faults["never"]]
    lines = _shortened(found, MOST_LINES, "and {} more (result.json)")
    return [*lines, f"never acted: {_list_of_names(never)}"] if never else lines


def _lines_of(index: int, plan: Mapping[str, Any], faults: Mapping[str, Any], counts: Mapping[str, int]) -> list[str]:
    own = [entry for entry in faults["acted"] if entry["plan"] == index]
    kind = plan["kind"]
    if not own:
        return []
    if issubclass(KINDS[kind], ProcessFailure):
        return [_failure_in_words(entry, issubclass(KINDS[kind], Hang)) for entry in own]
    processes, last = _list_of_names([entry["process"] for entry in own]), max(entry["until_s"] for entry in own)
    when = f"{_seconds(min(entry['from_s'] for entry in own), last)}-{_seconds(last)} s"
    if kind == "messages":
        alone = sum(entry["kind"] == kind for entry in faults["plans"]) == 1
        hit = ", ".join(f"{count:,} {outcome}" for outcome, count in counts.items()) or "none was hit"
        return [f"messages of {processes} {when}{f': {hit}' if alone else ''}"]
    if kind == "hog":
        return [f"a hog beside {processes} {when}"]
    factors = [entry["factor"] for entry in own]
    return [f"{processes} {'up to ' if plan.get('factor') != max(factors) else ''}{max(factors):.3g}x slower {when}"]


def _failure_in_words(entry: Mapping[str, Any], hang: bool) -> str:
    text = f"{entry['process']} {'stopped' if hang else 'killed'} at {_seconds(entry['at_s'])} s"
    if not hang:
        return text
    return f"{text} for good" if entry["seconds"] is None else f"{text} for {entry['seconds']:g} s"


def _named(index: int, plan: Mapping[str, Any]) -> str:
    moment = next((form.format(plan[key]) for key, form in MOMENTS.items() if plan.get(key) is not None), "")
    return f"faults.plans[{index}] ({plan['kind']}{f' {moment}' if moment else ''})"


def _seconds(value: float, largest: float | None = None) -> str:
    """Format seconds for the report; short runs in virtual time get more digits."""
    return f"{value:.{1 if (value if largest is None else largest) >= 0.1 else 4}f}"


def _list_of_names(names: Sequence[str]) -> str:
    return ", ".join(_shortened(names, MOST_NAMES, "and {} more"))


def _shortened(texts: Sequence[str], most: int, rest: str) -> list[str]:
    return [*texts] if len(texts) <= most else [*texts[:most], rest.format(len(texts) - most)]
