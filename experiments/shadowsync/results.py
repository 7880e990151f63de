"""Write results.md: the tables of this study. Costs half a minute; reads runs/studies/. Part of `make shadowsync`.

    .venv/bin/python experiments/shadowsync/results.py
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import done as of_any  # noqa: E402  (scripts beside this one and its folder, not a package)
import study  # noqa: E402
import tables  # noqa: E402
import traffic  # noqa: E402
from done import Done, seeds, size  # noqa: E402

SWEEP, HOGWILD = HERE / "sweep.yaml", HERE / "hogwild.md"


def done(name: str) -> list[Done]:
    """The finished cells of a part."""
    return of_any.done(SWEEP, name, "shadowsync")


def with_traffic(name: str) -> list[Done]:
    """The same, with the `megabytes` that each sent."""
    return [
        replace(cell, result={**cell.result, "megabytes": traffic.megabytes(cell.folder, cell.result)})
        for cell in done(name)
    ]


def section(title: str, name: str, table: str) -> str:
    """A heading, where the figures come from, and the table."""
    cells = of_any.part(SWEEP, name).cells
    found = ", ".join(seeds(cells))
    return f"## {title}\n\n{name}: seeds {found}; {len(cells)} runs, code version {study.code_version()}.\n\n{table}"


def main() -> None:
    """Write the file."""
    made = f"make shadowsync{'' if size() == 'default' else f' SIZE={size()}'}"
    text = [
        f"# Results\n\nWritten by `{made}`; questions and answers are in README.md. +-: half of a 95 % interval over "
        "seeds.\n",
        section("1. EPS by trainers, local", "speed_local", tables.scaling(done("speed_local"))),
        section("1. EPS by trainers, virtual", "speed", tables.scaling(done("speed"))),
        section("2. Quality by trainers", "quality", tables.quality(done("quality"))),
        section("3. Example-level parallelism", "elp", tables.parallelism(done("elp"))),
        section("4. Ablations", "ablation", tables.listing(with_traffic("ablation"), "line")),
        section("5. All modes", "modes", tables.listing(with_traffic("modes"), "mode")),
    ]
    if HOGWILD.exists():
        text.append(f"## Threads or processes on one replica\n\n{HOGWILD.read_text()}")
    (HERE / "results.md").write_text("\n".join(text))


if __name__ == "__main__":
    main()
