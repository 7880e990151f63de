"""Memory benchmark: a server's resident bytes against the size of rows and optimizer, a worker's against table size.

The server is that of a training that goes on from a checkpoint: it has read the state of every row, so that no page of
it is untouched. The checkpoint of 10 M rows takes 2 GB of the scratch folder.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from pathlib import Path

from bench_lines import Line
from ratio_sides import Bench, SideError
from table_sizes import max_cardinality

from gbactl.calibration.short_local_runs import node_pids

EVERY_SECONDS = 0.05
SAMPLES = 20_000
STATE = ("table", "moments", "counts")


def resident(pid: int) -> int:
    """Resident bytes of a process without its shared memory: the payload slots are gradient buffers."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    found = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines if line.startswith("Rss")}
    return found["RssAnon"] + found["RssFile"]


def weigh(bench: Bench, rows: int) -> tuple[int, int]:
    """Resident bytes of a server that holds at least `rows` rows, and its own account of their state.

    Raises SideError where the server was never seen."""
    saved, folder = (bench.scratch / f"memory-{rows}-{part}" for part in ("saved", "resumed"))
    shape = (f"data.max_cardinality={max_cardinality(rows)}", "data.days=3", "train.max_eval_samples=512")
    keys = ("train.days=1", "checkpoint=full", "checkpoint.mb_per_second=0", f"run_dir={saved}")
    bench.train("async", 1, 512, *shape, *keys, rows=SAMPLES)
    seen, over = list[int](), threading.Event()

    def look() -> None:
        while not over.wait(EVERY_SECONDS):
            with suppress(OSError, KeyError):  # before its start, after its end
                seen.append(resident(node_pids(folder)["S0"]))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        keys = ("train.days=2", "checkpoint=none", f"resume={saved}", f"run_dir={folder}")
        account = bench.train("async", 1, 512, *shape, *keys, rows=SAMPLES)["memory"]["S0"]
    finally:
        over.set()
        thread.join()
    if not seen:
        raise SideError("the server's memory was never read")
    return seen[-1], sum(account[kind] for kind in STATE)


def server_lines(bench: Bench, sizes: list[int]) -> list[Line]:
    """Measure one line for each table size."""
    empty = weigh(bench, 20)[0]
    found = []
    for rows in sizes:
        bytes_now, state = weigh(bench, rows)
        note = f"{bytes_now / 1e6:,.0f} MB, empty {empty / 1e6:,.0f}, rows and Adam {state / 1e6:,.0f}"
        what = f"server's memory, net / rows and optimizer, {rows / 1e6:g} M rows"
        ratio = (bytes_now - empty) / state
        found.append(Line(f"memory-{rows // 1_000_000}m", what, [ratio], 1.15, at_least=False, note=note))
    return found


def worker_line(bench: Bench, large: int) -> Line:
    """Measure the peak memory of workers with a large table against that with a small one."""
    peaks, sizes = [], []
    for cardinality in (1_000, large):
        result = bench.train("async", 2, 512, f"data.max_cardinality={cardinality}", rows=40_000)
        memory = result["memory"]
        peaks.append(max(v["peak_rss"] for k, v in memory.items() if k.startswith("W")))
        sizes.append(memory["S0"]["table"])
    small, big = (
        f"{peak / 1e6:,.0f} MB beside a table of {size / 1e6:,.1f} MB" for peak, size in zip(peaks, sizes, strict=True)
    )
    what = "worker's peak memory, large / small table"
    return Line("worker-memory", what, [peaks[1] / peaks[0]], 1.05, at_least=False, note=f"{big}; {small}")
