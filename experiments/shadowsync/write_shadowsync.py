"""Write results.md: the tables of this study. Costs half a minute. Part of `make shadowsync`.

.venv/bin/python experiments/shadowsync/write_shadowsync.py [--part NAME]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import study_results as of_any  # noqa: E402  (scripts of this folder and its parent, not a package)
import tables  # noqa: E402
from study_results import Done  # noqa: E402

SWEEP, HOGWILD = HERE / "sweep.yaml", HERE / "hogwild.md"


def done(name: str) -> list[Done]:
    """Finished cells of a part."""
    return of_any.done(SWEEP, name, "shadowsync")


def with_plain(name: str, lines: Sequence[str], trainers: str) -> list[Done]:
    """Finished cells of a part, after those of `quality` with some lines and that many trainers."""
    plain = [
        cell for cell in done("quality")
        if cell.options["line"] in lines and cell.options["cluster.workers"] == trainers
    ]  # fmt: skip
    return [*plain, *done(name)]


SECTIONS: dict[str, tuple[str, Callable[[], str]]] = {
    "speed_local": ("1. EPS by trainers, local", lambda: tables.scaling(done("speed_local"))),
    "speed_one": (
        "1. EPS by trainers, virtual, one sync server",
        lambda: f"{tables.scaling(done('speed_one'))}\n{tables.centre(done('speed_one'))}",
    ),
    "speed": ("1. EPS by trainers, virtual, eight sync servers", lambda: tables.scaling(done("speed"))),
    "quality": ("2. Quality by trainers", lambda: tables.quality(done("quality"))),
    "elp": ("3. Example-level parallelism", lambda: tables.parallelism(with_plain("elp", ("shadow_ma", "fr_ma"), "1"))),
    "ablation": ("4. Ablations", lambda: tables.listing(with_plain("ablation", ("shadow_ma",), "16"), "line")),
    "modes": ("5. All modes", lambda: tables.listing(done("modes"), "mode")),
}


def main() -> None:
    """Write results.md; with --part only these parts are computed, and the others are kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", action="append", metavar="NAME", choices=list(SECTIONS))
    chosen, path = parser.parse_args().part, HERE / "results.md"
    before = path.read_text() if chosen else ""
    text = [f"{of_any.title('shadowsync')} +-: half of a 95 % interval over seeds.\n"]
    for name, (title, table) in SECTIONS.items():
        if not chosen or name in chosen:
            text.append(f"## {title}\n\n{of_any.origin(SWEEP, name)}\n{table()}")
        elif there := of_any.section(before, f"## {title}"):
            text.append(f"{there.rstrip()}\n")
    if HOGWILD.exists():
        text.append(f"## Threads or processes on one replica\n\n{HOGWILD.read_text()}")
    path.write_text("\n".join(text))


if __name__ == "__main__":
    main()
