"""`make bench`: the speed and memory figures of the README as ratios, measured here, each with its target.

    .venv/bin/python experiments/bench/run.py [--quick] [--rounds N] [--only NAME] [--out FOLDER]

The two sides of a ratio alternate (reference, variant, reference, variant, ...); a line is the median of the
rounds' ratios with their range, so a machine that is slow for a while slows both sides. Keep the machine
otherwise idle: about 25 minutes with 5 rounds, 6 with --quick, whose single short rounds only show that all
of it works.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from crew import end_on_sigterm, one_thread_each
from lines import Line, Pair, Tell, pairs
from sides import Bench, SideError

BUSY = 0.7
Job = Callable[[], list[Line]]


def tell(text: str) -> None:
    """Progress."""
    print(f"  {text}", file=sys.stderr, flush=True)


def jobs(bench: Bench, rounds: int, quick: bool, tell: Tell) -> dict[str, Job]:
    """Every measurement by name; none has run."""

    def of_pair(pair: Pair) -> Job:
        return lambda: [pair.measure(rounds, tell)]

    def kernels() -> list[Line]:
        from kernel_lines import measure_all

        return measure_all(2_000_000 if quick else 10_000_000, 40 if quick else 200)

    def memory() -> list[Line]:
        from memory import server_lines

        return server_lines([1_000_000] if quick else [1_000_000, 10_000_000])

    def workers() -> list[Line]:
        from memory import worker_line

        return [worker_line(bench, 300_000 if quick else 3_000_000)]

    def log() -> list[Line]:
        from log_share import measure

        return [measure(bench, rounds)]

    def announcements() -> list[Line]:
        from announcements import line

        return [line(rounds, 20_000 if quick else 60_000)]

    return {
        **{pair.name: of_pair(pair) for pair in pairs(bench)},
        "kernels": kernels, "memory": memory, "worker-memory": workers, "eventlog": log,
        "announcements": announcements,
    }  # fmt: skip


def arguments() -> argparse.Namespace:
    """Command line."""
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=layout)
    parser.add_argument("--quick", action="store_true", help="one short round of everything")
    parser.add_argument("--rounds", type=int, help="alternating rounds of a ratio (5; quick: 1)")
    parser.add_argument("--only", action="append", metavar="NAME", help="this line alone; may be repeated")
    parser.add_argument("--rows", type=int, help="samples of the training day (400,000; quick: 120,000)")
    parser.add_argument("--seconds", type=float, help="seconds the reference and the peers run (6; quick: 3)")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="write results.json and results.md there")
    given = parser.parse_args()
    given.rounds = given.rounds or (1 if given.quick else 5)
    given.rows = given.rows or (120_000 if given.quick else 400_000)
    given.seconds = given.seconds or (3.0 if given.quick else 6.0)
    return given


def warn_if_busy() -> float:
    """The load of the last minute; a sentence when other work is going on."""
    load = os.getloadavg()[0]
    if load > BUSY:
        tell(f"the machine is busy (load {load:.1f}): the ratios of this run are not to be trusted")
    return load


def prepare(bench: Bench) -> None:
    """Make the data cache, so that no side has to."""
    from alone import prepared

    tell("preparing data")
    prepared(bench.overrides(4, 512))


def main() -> int:
    """Measure, print, write; 1 when a target is missed or a line could not be measured, 2 on a wrong name."""
    given = arguments()
    one_thread_each()
    end_on_sigterm()
    with tempfile.TemporaryDirectory(prefix="gbactl-bench-") as scratch:
        bench = Bench(Path(scratch), given.rows, given.seconds)
        known = jobs(bench, given.rounds, given.quick, tell)
        chosen = given.only or list(known)
        if unknown := [name for name in chosen if name not in known]:
            names = ", ".join(known)
            print(f"{', '.join(unknown)}: not known; --only takes one of {names}.", file=sys.stderr)
            return 2
        load = warn_if_busy()
        prepare(bench)
        found: list[Line] = []
        failed = False
        for name in chosen:
            tell(name)
            try:
                found += known[name]()
            except Exception as error:  # the other lines are still wanted
                failed = True
                known_kind = isinstance(error, SideError)
                tell(f"{name} could not be measured: {error if known_kind else repr(error)}")
    report(found, given, load)
    return 1 if failed or any(line.met is False for line in found) else 0


def report(found: list[Line], given: argparse.Namespace, load: float) -> None:
    """Table, and files where they are wanted."""
    from table import show, write

    show(found)
    if given.out is not None:
        settings = {name: getattr(given, name) for name in ("rounds", "rows", "seconds", "quick")}
        settings["load_before"] = load
        write(given.out, found, settings)


if __name__ == "__main__":
    sys.exit(main())
