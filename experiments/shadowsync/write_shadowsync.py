"""Write results.md: the tables of this study. Costs half a minute. Part of `make shadowsync`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path

import tables
from study_results import Done, Results

STUDY = Results(Path(__file__).resolve().with_name("sweep.yaml"))
HOGWILD = STUDY.sweep.parent / "hogwild.md"


def with_plain(name: str, lines: Sequence[str], trainers: str) -> list[Done]:
    """Finished cells of a part, after those of `quality` with some lines and that many trainers."""
    plain = [
        cell for cell in STUDY.done("quality")
        if cell.options["line"] in lines and cell.options["cluster.workers"] == trainers
    ]  # fmt: skip
    return [*plain, *STUDY.done(name)]


SECTIONS: dict[str, tuple[str, Callable[[], str]]] = {
    "speed_local": ("1. EPS by trainers, local", lambda: tables.scaling(STUDY.done("speed_local"))),
    "speed_one": (
        "1. EPS by trainers, virtual, one sync server",
        lambda: f"{tables.scaling(STUDY.done('speed_one'))}\n{tables.centre(STUDY.done('speed_one'))}",
    ),
    "speed": ("1. EPS by trainers, virtual, eight sync servers", lambda: tables.scaling(STUDY.done("speed"))),
    "quality": ("2. Quality by trainers", lambda: tables.quality(STUDY.done("quality"))),
    "elp": ("3. Example-level parallelism", lambda: tables.parallelism(with_plain("elp", ("shadow_ma", "fr_ma"), "1"))),
    "ablation": ("4. Ablations", lambda: tables.listing(with_plain("ablation", ("shadow_ma",), "16"), "line")),
    "modes": ("5. All modes", lambda: tables.listing(STUDY.done("modes"), "mode")),
}


def main() -> None:
    """Write results.md; a section whose part has cells without a result stays as it was."""

    def section(name: str, table: Callable[[], str]) -> str:
        return f"{STUDY.origin(name)}\n{table()}"

    made = {f"## {title}": functools.partial(section, name, table) for name, (title, table) in SECTIONS.items()}
    if HOGWILD.exists():
        made["## Threads or processes on one replica"] = HOGWILD.read_text
    note = " +-: half of a 95 % interval over seeds."
    STUDY.write(*STUDY.sections(made), note=note)
