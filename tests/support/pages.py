"""Commands and files that README.md and the pages under docs/ show.

A fenced block of language `sh` holds commands. A comment `<!-- test: MARK -->` above it says how they are tested:

- no mark: in every test run, as they stand (tests/integration/test_readme.py)
- `slow`: the same, by `make test-slow`
- `calibration`: with a small model, while nothing else runs (tests/integration/test_calibrate.py)
- `own data`: on small files of the formats that they name
- `hosts`: on several network namespaces (tests/integration/test_hosts.py)
- `slurm`: on a Slurm cluster of this machine (tests/integration/test_engines.py)
- `additions`: with the templates as an installed package (tests/integration/test_additions.py)
- `make`: the targets exist
- `synopsis`: verb, options and keys exist (tests/unit/test_pages.py); words in capitals stand for the reader's own

A fenced block with a title is a file.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MARKS = ("", "slow", "calibration", "own data", "hosts", "slurm", "additions", "make", "synopsis")
_MARK = r"(?:<!-- test: ([a-z ]+) -->\n+)?"
_BLOCK = re.compile(rf'^{_MARK}```(\w*)(?: title="([^"\n]+)")?\n(.*?)^```$', re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """Fenced block of a page."""

    mark: str
    language: str
    title: str
    text: str


def pages() -> list[Path]:
    """README.md and every page of the site, relative to the source tree."""
    return [Path("README.md"), *sorted(path.relative_to(ROOT) for path in (ROOT / "docs").rglob("*.md"))]


def text_of(page: str | Path) -> str:
    """Text of a page."""
    return (ROOT / page).read_text()


def blocks(page: str | Path, language: str = "") -> list[Block]:
    """Fenced blocks of a page, of one language if it is given."""
    found = [Block(mark, lang, title, text) for mark, lang, title, text in _BLOCK.findall(text_of(page))]
    return [block for block in found if language in ("", block.language)]


def scripts(page: str | Path, *marks: str) -> list[str]:
    """Texts of a page's `sh` blocks with one of the marks, in the order of the page."""
    return [block.text for block in blocks(page, "sh") if block.mark in marks]


def commands(page: str | Path, *marks: str) -> list[str]:
    """Command lines of a page's `sh` blocks with one of the marks, without comments."""
    lines = [line.split("  #")[0].strip() for text in scripts(page, *marks) for line in text.splitlines()]
    return [line for line in lines if line]


def files(page: str | Path) -> dict[str, str]:
    """Contents of the new files that a page shows, by path."""
    return {block.title: block.text for block in blocks(page) if block.title}
