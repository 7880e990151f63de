"""CPU that measuring costs, as a share of the CPU of a gradient: the curves, and the times by activity.

    python experiments/performance/measuring_cost.py data=synthetic ...

One process computes gradients, and after each it makes the calls that measure in a run: for the curves (a batch's
ranked pairs, and their sums in the coordinator), and for the times by activity in a worker, a server and the
coordinator. A call thus finds its code and data in the caches no more than in a run. The coordinator adds the times of
many gradients together; `sums` is a gradient's share of that, measured once at the end. Prints the median microseconds
of CPU of each call, as JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from bench_lines import Line, Tell
from process_group import one_thread_each
from ratio_sides import Bench

TURNS, WARM_UP = 100, 10
LINES = {  # name: calls, and percentage of the CPU of a gradient, at most
    "curves": (("curves",), 1.0),
    "times": (("worker", "server", "coordinator", "sums"), 0.5),
}


def calls(overrides: list[str]) -> dict[str, Callable[[], object]]:
    """Make the calls for a gradient of a run with these overrides: computing it, and measuring."""
    from plain_loop import Trainee, prepared

    from gbactl.coordinator.statistics import ActivityTimes, RecentGradients
    from gbactl.quality_metrics import ranked_pairs
    from gbactl.wire.node_measurements import BUSY, KERNELS, PUSH, TURN, NodeTimes, ServerTimes

    me = Trainee(prepared(overrides), overrides, 0, 1)
    me.emb.fill(0.01)
    data = me.feed(0)
    scores = me.computer.predict(data.numeric, me.emb.reshape(me.batch, -1, me.width))
    recent, of_worker, of_server, times = RecentGradients(), NodeTimes(), ServerTimes(), ActivityTimes()
    waits = of_worker.take()

    def curves() -> None:
        recent.add(0, me.batch, 0.5, 0.01, ranked_pairs(data.labels, scores))

    def worker() -> None:
        of_worker.next_batch(time.perf_counter(), time.perf_counter())
        for activity in (TURN, PUSH):
            with of_worker.activity(activity):
                pass
        of_worker.take()

    def server() -> None:
        for kernels in (1, 0, 1):  # of a pull, a push and an order
            with of_server.activity(BUSY):
                for _ in range(kernels):
                    with of_server.activity(KERNELS):
                        pass

    def coordinator() -> None:
        times.add(time.monotonic(), 0, 0.01, waits, "async")

    measuring = {"curves": curves, "worker": worker, "server": server, "coordinator": coordinator}
    return {"gradient": lambda: me.gradient(data, 0), **measuring}


def sums_of_times() -> float:
    """Measure the coordinator's microseconds of CPU a gradient for adding up the times of MOST_PENDING gradients."""
    from gbactl.coordinator.statistics import ACTIVITIES, MOST_PENDING, ActivityTimes

    times, waits = ActivityTimes(), [0.0] * (len(ACTIVITIES) - 1)
    for _ in range(MOST_PENDING - 1):
        times.add(time.monotonic(), 0, 0.01, waits, "async")
    began = time.process_time()
    times.add(time.monotonic(), 0, 0.01, waits, "async")
    return 1e6 * (time.process_time() - began) / MOST_PENDING


def medians(measured: Mapping[str, Callable[[], object]], turns: int = TURNS) -> dict[str, float]:
    """Measure median microseconds of CPU of each call; in each turn the calls follow each other."""
    seconds: dict[str, list[float]] = {name: [] for name in measured}
    for _ in range(WARM_UP + turns):
        for name, call in measured.items():
            began = time.process_time()
            call()
            seconds[name].append(time.process_time() - began)
    return {name: 1e6 * statistics.median(found[WARM_UP:]) for name, found in seconds.items()}


def lines(bench: Bench, batch: int, rounds: int, tell: Tell) -> list[Line]:
    """Measure the table's lines, curves and times, each round in a new process."""
    found = [
        Line(f"measuring-{name}-{batch}", f"{name} / gradient, CPU, batch {batch}", [], most, False, percent=True)
        for name, (_, most) in LINES.items()
    ]
    for number in range(rounds):
        us = json.loads(bench.command("measuring_cost.py", [str(Path(__file__)), *bench.overrides(4, batch)]))
        for line, (measured, _) in zip(found, LINES.values(), strict=True):
            line.values.append(100 * sum(us[each] for each in measured) / us["gradient"])
            told = ", ".join(f"{each} {us[each]:.1f}" for each in measured)
            line.note = f"last round: {told} / {us['gradient']:,.0f} us"
        tell(f"measuring-{batch} {number + 1}/{rounds}: {'; '.join(line.note for line in found)}")
    return found


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("overrides", nargs="*")
    given = parser.parse_args()
    one_thread_each()
    print(json.dumps({**medians(calls(given.overrides)), "sums": sums_of_times()}))


if __name__ == "__main__":
    main()
