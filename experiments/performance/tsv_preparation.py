"""Benchmark of preparing Criteo's TSV: megabytes of the file a second on one core, and the process's peak memory.

Synthetic lines go to a temporary file; a separate process, bound to one core, prepares it from start to end
(fingerprint, parsing, hashing, arrays, checksums).
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from pathlib import Path

import numpy as np
from bench_lines import Line, Tell
from process_group import apart

LINES, INTEGERS, IDS = 20_000, 13, 26
MISSING = 0.1
MEGABYTE = 1_000_000


def block(rng: np.random.Generator, lines: int = LINES) -> bytes:
    """Generate lines in Criteo's format: label, 13 integers, 26 ids of 8 hexadecimal digits, one in ten cells empty."""
    ids = np.frombuffer(rng.bytes(4 * IDS * lines).hex().encode(), "S8").reshape(lines, IDS)
    integers = rng.integers(-2, 30_000, (lines, INTEGERS)).astype("S6")
    cells = np.concatenate([integers.astype("S8"), ids], axis=1)
    cells[rng.random(cells.shape) < MISSING] = b""
    labels = (b"1" if click else b"0" for click in rng.random(lines) < 0.25)
    rows = (b"\t".join([label, *row]) for label, row in zip(labels, cells.tolist(), strict=True))
    return b"\n".join([*rows, b""])


def write(path: Path, megabytes: int) -> int:
    """Write lines up to this many megabytes; return the bytes written."""
    rng, size = np.random.default_rng(1), 0
    with path.open("wb") as file:
        while size < megabytes * MEGABYTE:
            size += file.write(block(rng))
    return size


def peak_megabytes() -> float:
    """Peak resident memory of this process so far (Linux)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 / MEGABYTE for line in lines if line.startswith("VmHWM"))


def prepare_here(path: Path) -> tuple[float, float]:
    """Prepare a file in this process, on one core; return (MB/s, peak MB)."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    from gbactl.data.cache import prepare
    from gbactl.data.readers import make_source
    from gbactl.launch.hydra_config import compose

    data = compose(["data=criteo", f"data.path={path}", f"data.cache={path.parent / 'cache'}", "data.days=2"]).data
    make_source(data)  # imports the reader and polars in advance: a cost of starting, not of the file
    began = time.perf_counter()
    prepare(data, None)
    return path.stat().st_size / MEGABYTE / (time.perf_counter() - began), peak_megabytes()


def measure(path: Path) -> tuple[float, float]:
    """Prepare a file in a separate process; return (MB/s, peak MB). Raises GbactlError."""
    return apart(prepare_here, path)


def lines(rounds: int, megabytes: int, tell: Tell) -> list[Line]:
    """Measure the lines of speed and of memory."""
    found = []
    with tempfile.TemporaryDirectory(prefix="gbactl-tsv-") as folder:
        path = Path(folder) / "train.txt"
        size = write(path, megabytes)
        for number in range(rounds):
            found.append(measure(path))
            tell(f"tsv {number + 1}/{rounds}: {found[-1][0]:.0f} MB/s, peak {found[-1][1]:.0f} MB")
            shutil.rmtree(Path(folder) / "cache")
    note = f"a file of {size / MEGABYTE:,.0f} MB, plain text, from fingerprint to checksums"
    rates, peaks = ([values[side] for values in found] for side in (0, 1))
    return [
        Line("tsv-speed", "Criteo TSV preparation, MB/s on one core", rates, 100.0, note=note),
        Line("tsv-memory", "its peak resident memory, MB", peaks, 1000.0, at_least=False, note=note),
    ]
