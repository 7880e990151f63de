"""Write results.md: the tables of this study. Costs a second; reads runs/studies/. Part of `make shadowsync`.

    .venv/bin/python experiments/shadowsync/results.py
"""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "gba_claims")]

import tables  # noqa: E402  (a script beside this one)
from cells import done, part, seeds, size, study  # noqa: E402  (of the other study: how cells are read)

SWEEP = HERE / "sweep.yaml"


def section(title: str, name: str, table: str) -> str:
    """A heading, where the figures come from, and the table."""
    cells = part(name, SWEEP).cells
    found = ", ".join(seeds(cells))
    return f"## {title}\n\n{name}: seeds {found}; {len(cells)} runs, code version {study.code_version()}.\n\n{table}"


def main() -> None:
    """Write the file."""
    made = f"make shadowsync{'' if size() == 'default' else f' SIZE={size()}'}"
    text = [
        f"# Results\n\nWritten by `{made}`; questions and answers are in README.md. +-: half of a 95 % interval over "
        "seeds.\n",
        section("1. EPS by trainers, virtual", "speed", tables.scaling(done("speed", SWEEP))),
        section("1. EPS by trainers, local", "speed_local", tables.scaling(done("speed_local", SWEEP))),
        section("2. Quality by trainers", "quality", tables.quality(done("quality", SWEEP))),
        section("3. Example-level parallelism", "elp", tables.parallelism(done("elp", SWEEP))),
        section("4. Ablations", "ablation", tables.listing(done("ablation", SWEEP), "line")),
        section("5. All modes", "modes", tables.listing(done("modes", SWEEP), "mode")),
    ]
    (HERE / "results.md").write_text("\n".join(text))


if __name__ == "__main__":
    main()
