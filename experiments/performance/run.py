"""Benchmark (`make bench`): the ratios of docs/studies/performance.md, measured here, each with its target.

    .venv/bin/python experiments/performance/run.py [--quick] [--rounds N] [--only NAME] [--out FOLDER]

The two sides of a ratio alternate (reference, variant, reference, variant, ...). A line is the median of the
rounds' ratios with their range, so a machine that is slow for a while slows both sides. Keep the machine
otherwise idle: about an hour and a half with 5 rounds, 15 minutes with --quick, whose single short rounds only
show that all of it works.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

import bench_report
from bench_lines import Line, Tell
from bench_ratios import pairs
from process_group import end_on_sigterm, one_thread_each
from ratio_sides import Bench, SideError

from gbactl.errors import GbactlError

BUSY = 0.7
Job = Callable[[], list[Line]]
Keep = Callable[[list[Line], dict[str, str]], None]


def tell(text: str) -> None:
    """Print progress on standard error."""
    print(f"  {text}", file=sys.stderr, flush=True)


def jobs(bench: Bench, rounds: int, quick: bool, tell: Tell) -> dict[str, Job]:
    """List every measurement by name, without running it."""
    import announcements
    import event_log_share
    import kernel_copy
    import kernels
    import measuring_cost
    import memory_use
    import server_cpu
    import tsv_preparation
    import virtual_cost

    rows, turns = (2_000_000, 40) if quick else (10_000_000, 200)
    sizes = [1_000_000] if quick else [1_000_000, 10_000_000]
    return {
        **{pair.name: lambda pair=pair: [pair.measure(rounds, tell)] for pair in pairs(bench)},
        **{
            f"server-cpu-{kind}": lambda kind=kind, most=most: [server_cpu.line(bench, kind, most, rounds, tell)]
            for kind, most in (("shm", 1.3), ("tcp", 2.1))
        },
        **{
            f"virtual-{batch}": lambda batch=batch: [virtual_cost.line(bench, batch, rounds, tell)]
            for batch in (128, 512)
        },
        "tsv": lambda: tsv_preparation.lines(rounds, 20 if quick else 200, tell),
        "eventlog": lambda: [event_log_share.measure(bench, rounds)],
        **{
            f"measuring-{batch}": lambda batch=batch: measuring_cost.lines(bench, batch, rounds, tell)
            for batch in (128, 512)
        },
        "announcements": lambda: [announcements.line(rounds, 20_000 if quick else 60_000)],
        "kernels": lambda: kernels.lines(rows, turns),
        "kernel-copy": lambda: kernel_copy.lines(rows, turns),
        "memory": lambda: memory_use.server_lines(bench, sizes),
        "worker-memory": lambda: [memory_use.worker_line(bench, 300_000 if quick else 3_000_000)],
    }


def picked(asked: list[str] | None, known: Iterable[str]) -> list[str]:
    """Resolve the names given to --only: NAME itself, else all that begin with NAME-. Raises KeyError."""
    names, found = list(known), []
    for name in asked or names:
        here = [name] if name in names else [each for each in names if each.startswith(f"{name}-")]
        if not here:
            raise KeyError(name)
        found += here
    return list(dict.fromkeys(found))


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=layout)
    parser.add_argument("--quick", action="store_true", help="one short round of everything")
    parser.add_argument("--rounds", type=int, help="alternating rounds of a ratio (5; quick: 1)")
    parser.add_argument("--only", action="append", metavar="NAME", help="this line, or all NAME-...; may be repeated")
    parser.add_argument("--rows", type=int, help="samples of the training day (400,000; quick: 120,000)")
    parser.add_argument("--seconds", type=float, help="seconds the reference and the peers run (6; quick: 3)")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="write results.json and results.md there")
    given = parser.parse_args()
    given.rounds = given.rounds or (1 if given.quick else 5)
    given.rows = given.rows or (120_000 if given.quick else 400_000)
    given.seconds = given.seconds or (3.0 if given.quick else 6.0)
    return given


def warn_if_busy() -> float:
    """Load of the last minute; prints a warning when the machine is busy."""
    load = os.getloadavg()[0]
    if load > BUSY:
        tell(f"the machine is busy (load {load:.1f}): the ratios of this run are not to be trusted")
    return load


def prepare(bench: Bench) -> None:
    """Build the data cache, so that no side has to."""
    from plain_loop import prepared

    tell("preparing data")
    prepared(bench.overrides(4, 512))


def main() -> int:
    """Measure, print, write; return 1 when a target is missed or a line could not be measured, 2 on a wrong name."""
    given = arguments()
    one_thread_each()
    end_on_sigterm()
    with tempfile.TemporaryDirectory(prefix="gbactl-bench-") as scratch:
        bench = Bench(Path(scratch), given.rows, given.seconds)
        known = jobs(bench, given.rounds, given.quick, tell)
        try:
            chosen = picked(given.only, known)
        except KeyError as error:
            print(f"{error.args[0]}: not known; --only takes one of {', '.join(known)}.", file=sys.stderr)
            return 2
        load = warn_if_busy()
        prepare(bench)
        found, failed = measure({name: known[name] for name in chosen}, lambda *so_far: keep(*so_far, given, load))
    bench_report.show(found)
    return 1 if failed or any(line.met is False for line in found) else 0


def measure(chosen: dict[str, Job], keep: Keep) -> tuple[list[Line], dict[str, str]]:
    """Run the jobs; return lines, and reasons by name of the jobs that failed.

    A failure does not affect the other lines.
    """
    found: list[Line] = []
    failed: dict[str, str] = {}
    for name, job in chosen.items():
        tell(name)
        try:
            found += job()
        except Exception as error:  # the other lines are still measured
            failed[name] = str(error) if isinstance(error, SideError | GbactlError) else repr(error)
            tell(f"{name} could not be measured: {failed[name]}")
        keep(found, failed)
    return found, failed


def keep(found: list[Line], failed: dict[str, str], given: argparse.Namespace, load: float) -> None:
    """Write the result files if a folder is given."""
    if given.out is not None:
        settings = {name: getattr(given, name) for name in ("rounds", "rows", "seconds", "quick")}
        settings |= {"load_before": load, "command": bench_report.command_line(sys.argv)}
        bench_report.write(given.out, found, settings, failed)


if __name__ == "__main__":
    sys.exit(main())
