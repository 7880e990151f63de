"""Write results.md: the tables of this study. Costs half a minute. Part of `make shadowsync`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path

import study_results as of_any
import tables
from study_results import Done

HERE = Path(__file__).resolve().parent
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
    """Write results.md; a section whose part has cells without a result stays as it was."""

    def section(name: str, table: Callable[[], str]) -> str:
        return f"{of_any.origin(SWEEP, name)}\n{table()}"

    made = {f"## {title}": functools.partial(section, name, table) for name, (title, table) in SECTIONS.items()}
    if HOGWILD.exists():
        made["## Threads or processes on one replica"] = HOGWILD.read_text
    note = " +-: half of a 95 % interval over seeds."
    of_any.write(HERE, "shadowsync", *of_any.sections(HERE, made), note=note)
