"""Names of modes and places stand where they are made: all else asks the registry, or the place."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import gbactl
from gbactl.conf_catalogue import conf_dir
from gbactl.config.engine_interface import AUTO, engine_named
from gbactl.policies.policy import names

PACKAGE = Path(gbactl.__file__).parent
STUDIES = PACKAGE.parent / "experiments"
PLACES = {path.stem for path in (conf_dir() / "cluster").glob("*.yaml")} - {AUTO}
FEW = 3  # modes that something is about


def nodes(*folders: Path) -> Iterator[tuple[str, ast.AST]]:
    for folder in folders:
        for path in sorted(folder.rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                yield f"{path}:{getattr(node, 'lineno', 0)}", node


def texts(values: list[ast.expr | None]) -> set[str]:
    found = {value.value for value in values if isinstance(value, ast.Constant)}
    return {value for value in found if isinstance(value, str)}


def test_no_list_of_modes_can_go_stale() -> None:
    modes = set(names())
    for where, node in nodes(PACKAGE, STUDIES):
        listed = node.keys if isinstance(node, ast.Dict) else getattr(node, "elts", [])
        assert len(texts(listed) & modes) <= FEW, f"{where} lists modes: take gbactl.policies.policy.names"


def test_nothing_asks_for_the_name_of_a_place() -> None:
    for where, node in nodes(PACKAGE):
        if isinstance(node, ast.Compare):
            compared = [node.left, *node.comparators]
            inside = [each for value in compared for each in getattr(value, "elts", [])]
            if any("cluster" in ast.unparse(value) for value in compared):
                assert not texts([*compared, *inside]) & PLACES, f"{where}: ask cfg.engine"


def test_every_place_has_a_file_of_its_own_and_its_configuration() -> None:
    for name in PLACES:
        assert type(engine_named(name)).__module__ == f"gbactl.engine.{name}"
    facts = {name: (engine_named(name).real, engine_named(name).one_host, engine_named(name).here) for name in PLACES}
    remote = dict.fromkeys(("hosts", "exec", "ray", "slurm"), (True, False, False))
    assert facts == {"local": (True, True, True), "virtual": (False, True, False), **remote}
