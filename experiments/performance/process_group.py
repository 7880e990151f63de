"""Group of processes that start measuring together, and the environment of every process of the benchmark.

Costs nothing during measurement: one barrier, one queue.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import queue
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.process import BaseProcess
from typing import Any, TypeVar

from gbactl.engine.fork_server import thread_environment

START_SECONDS = 120.0
T = TypeVar("T")


def one_thread_each() -> None:
    """Set one thread a process, like gbactl's launcher for its workers.

    Before torch is imported, so children inherit it.
    """
    os.environ.update(thread_environment(1))


def apart(measure: Callable[..., T], *arguments: Any) -> T:
    """Measure in a process of its own, with one thread."""
    one_thread_each()
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(measure, *arguments).result()


def end_on_sigterm() -> None:
    """Exit on SIGTERM, so that a peer that is stopped ends its children."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))


def rates(
    target: Callable[..., None], arguments: Sequence[tuple[Any, ...]], seconds: float, silent: int = 0
) -> list[float]:
    """Run `target(*arguments[i], barrier, out)` in a process each, and return the value that each put into `out`.

    The first `silent` processes use neither barrier nor queue. Raises SystemExit when a process fails.
    """
    one_thread_each()
    end_on_sigterm()
    context = multiprocessing.get_context("spawn")
    talking = len(arguments) - silent
    barrier, out = context.Barrier(talking), context.Queue()
    running = [context.Process(target=target, args=(*given, barrier, out), daemon=True) for given in arguments]
    for process in running:
        process.start()
    try:
        found = _gather(running, out, talking, START_SECONDS + seconds)
        for process in running:
            process.join(30)
    finally:
        for process in running:
            process.kill()
    print("  each: " + "  ".join(f"{rate:,.0f}" for rate in found), file=sys.stderr)
    return found


def peer_command(doc: str | None, one: Callable[..., None], processes: int) -> None:
    """Run the command line of a peer and print the samples per second of all its processes together.

    Each runs `one(path, overrides, rank, size, seconds, meeting, barrier, out)`; `meeting` is a file that they share.
    """
    from plain_loop import prepared

    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=processes)
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("overrides", nargs="*")
    given = parser.parse_args()
    path, size = prepared(given.overrides), given.processes
    with tempfile.TemporaryDirectory(prefix="gbactl-peer-") as folder:
        ranks = [(path, given.overrides, rank, size, given.seconds, f"{folder}/meeting") for rank in range(size)]
        print(f"{sum(rates(one, ranks, given.seconds)):.0f}")


def _gather(running: list[BaseProcess], out: Any, count: int, patience: float) -> list[float]:
    found: list[float] = []
    for _ in range(int(patience)):
        try:
            while len(found) < count:
                found.append(out.get(timeout=1.0))
            return found
        except queue.Empty:
            failed = [process.name for process in running if process.exitcode not in (None, 0)]
            if failed:
                raise SystemExit(f"{', '.join(failed)} failed; the reason is above.") from None
    raise SystemExit(f"No figures after {patience:.0f} s.")
