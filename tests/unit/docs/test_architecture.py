"""The architecture pages name files and packages that are there."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PAGES = sorted((ROOT / "docs" / "architecture").glob("*.md"))
WITHIN = (ROOT, ROOT / "gbactl", ROOT / "gbactl" / "coordinator")
FILE = re.compile(r"`([\w./]+(?:\.py|\.yaml|\.md|/))`")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_file_that_a_page_names_is_there(page: Path) -> None:
    named = {name for name in FILE.findall(page.read_text()) if "NAME" not in name and "/" in name}
    assert named or page.stem == "state-machine"
    missing = {name for name in named if not any((folder / name).exists() for folder in WITHIN)}
    assert not missing


def test_the_table_of_layers_has_every_package_in_the_order_of_the_contract() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    order = [sorted(layer.split(" | ")) for layer in layers if layer != "__main__"]
    page = (ROOT / "docs" / "architecture" / "layers.md").read_text()
    cells = [line.split("|")[2] for line in page.splitlines() if line.count("|") == 4]
    named = [name for cell in cells for name in re.findall(r"`(\w+)`", cell)]
    assert [sorted(named[start : start + len(layer)]) for start, layer in starts(order)] == order
    assert len(named) == sum(map(len, order))


def starts(layers: list[list[str]]) -> list[tuple[int, list[str]]]:
    """Each layer with the number of names before it."""
    return [(sum(map(len, layers[:place])), layer) for place, layer in enumerate(layers)]
