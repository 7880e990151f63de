"""Growth of cost with one parameter varied at a time (`make curves`).

    .venv/bin/python experiments/performance/curves.py [--only NAME] [--quick] [--again] [--out FOLDER]

Workers 1..16 (real processes, async and gba), rows 10^5..3x10^7, local batch 128..8192, embedding dim 8..128. A
point is one short training, saved in curves.json when done, so that an interrupted run continues. A point that
does not fit into memory is refused with the arithmetic. Writes curves.md. About 15 minutes on an idle machine.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from curve_analysis import Curve, Point, text
from process_group import end_on_sigterm, one_thread_each
from ratio_sides import Bench, SideError, steady
from server_cpu import watched
from table_sizes import bytes_a_row, max_cardinality, table_rows

from gbactl.engine.host_and_network_facts import free_memory

HERE = Path(__file__).resolve().parent
DIM, WORKERS = 16, 4
SPARE = 0.8  # share of the free memory that a point may need; a refused point is tried again next time
FIGURES = "curves.json"


@dataclass(frozen=True)
class Setting:
    """One training; the varied parameter has the value `x`."""

    curve: str
    x: int
    mode: str = "async"
    workers: int = WORKERS
    batch: int = 512
    rows: int | None = None
    dim: int = DIM

    @property
    def key(self) -> str:
        """Name of the point in curves.json."""
        return f"{self.curve} {self.x}"

    @property
    def overrides(self) -> list[str]:
        """Overrides that differ from the benchmark's usual run."""
        cardinality = [] if self.rows is None else [f"data.max_cardinality={max_cardinality(self.rows)}"]
        return [*cardinality, f"model.dim={self.dim}"]

    @property
    def needed(self) -> tuple[int, int, int]:
        """Rows, bytes a row, and bytes of the table with Adam's state."""
        rows = table_rows(max_cardinality(self.rows) if self.rows else 100_000)
        return rows, bytes_a_row(self.dim), rows * bytes_a_row(self.dim)


def settings() -> dict[str, list[Setting]]:
    """Points of each curve."""
    counts = (1, 2, 4, 8, 16)
    return {
        "workers-async": [Setting("workers-async", n, workers=n) for n in counts],
        "workers-gba": [Setting("workers-gba", n, mode="gba", workers=n) for n in counts],
        "rows": [Setting("rows", n, rows=n) for n in (10**5, 3 * 10**5, 10**6, 3 * 10**6, 10**7, 3 * 10**7)],
        "batch": [Setting("batch", n, workers=2, batch=n) for n in (128, 256, 512, 1024, 2048, 4096, 8192)],
        "dim": [Setting("dim", n, dim=n) for n in (8, 16, 32, 64, 128)],
    }


WHAT = {
    "workers-async": "workers (processes), mode=async, batch 512",
    "workers-gba": "workers (processes), mode=gba, batch 512",
    "rows": "rows of the table, async 4+1, batch 512",
    "batch": "local batch, async 2+1",
    "dim": "embedding dimension, async 4+1, batch 512",
}


def refusal(setting: Setting, free: int) -> str:
    """Reason why this point cannot be run here, with the arithmetic; empty where it can."""
    rows, each, total = setting.needed
    if total <= SPARE * free:
        return ""
    return (
        f"refused: {rows:,} rows x {each} bytes (row, two moments, count) = {total / 1e9:.1f} GB, "
        f"more than {SPARE:.0%} of the {free / 1e9:.1f} GB that are free"
    )


def run(bench: Bench, setting: Setting, samples: int) -> Point:
    """Train a point with `samples` in its day, more where a batch is large."""
    if why := refusal(setting, free_memory()):
        return Point(setting.x, why=why)
    rows = max(samples, 150 * setting.batch)
    result, used = watched(bench, setting.mode, setting.workers, setting.batch, *setting.overrides, rows=rows)
    return Point(setting.x, steady(result)["rate"], used.seconds, used.used, used.others, setting.workers)


def measure(bench: Bench, chosen: list[Setting], known: dict[str, Any], samples: int, path: Path) -> None:
    """Measure every point that is not known yet and save it at once.

    A failing point is reported and left for the next run.
    """
    for setting in chosen:
        if setting.key in known and not known[setting.key]["why"]:
            print(f"  {setting.key}: was there", file=sys.stderr)
            continue
        try:
            point = run(bench, setting, samples)
        except SideError as error:
            print(f"  {setting.key} could not be measured: {error}", file=sys.stderr)
            continue
        known[setting.key] = asdict(point)
        path.write_text(json.dumps(known, indent=1) + "\n")
        print(f"  {setting.key}: {point.why or f'{point.rate:,.0f} samples/s'}", file=sys.stderr)


def curves(known: dict[str, Any]) -> list[Curve]:
    """Known points, by curve."""
    found = []
    for name, wanted in settings().items():
        points = [Point(**known[setting.key]) for setting in wanted if setting.key in known]
        if points:
            found.append(Curve(name, WHAT[name], points))
    return found


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=list(WHAT), help="this curve alone; may be repeated")
    parser.add_argument("--rows", type=int, default=300_000, help="samples of a point's training day")
    parser.add_argument("--quick", action="store_true", help="two points a curve, a short day")
    parser.add_argument("--again", action="store_true", help="measure the chosen curves' points anew")
    parser.add_argument("--out", type=Path, default=HERE, metavar="FOLDER", help="where curves.json and curves.md are")
    given = parser.parse_args()
    given.rows = 60_000 if given.quick else given.rows
    return given


def main() -> None:
    """Measure the missing points and write the tables."""
    from bench_report import command_line, machine

    given, everything = arguments(), settings()
    one_thread_each()
    end_on_sigterm()
    given.out.mkdir(parents=True, exist_ok=True)
    path = given.out / FIGURES
    known: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    with tempfile.TemporaryDirectory(prefix="gbactl-curves-") as scratch:
        bench = Bench(Path(scratch), given.rows, 0.0)
        for name in given.only or everything:
            chosen = everything[name][: 2 if given.quick else None]
            if given.again:
                known = {key: point for key, point in known.items() if key not in {each.key for each in chosen}}
            measure(bench, chosen, known, given.rows, path)
    (given.out / "curves.md").write_text(text(curves(known), machine(), command_line(sys.argv)))


if __name__ == "__main__":
    main()
