"""Modules that import each other in a circle, which the contracts in pyproject.toml see only between siblings."""

from __future__ import annotations

from graphlib import TopologicalSorter

import grimp

STILL_TO_COME = ("gbactl.coordinator.", "gbactl.simulation.")


def test_no_module_imports_itself_by_way_of_others() -> None:
    """A package's __init__ counts as a module of its own, and so do imports for typing and within functions."""
    graph = grimp.build_graph("gbactl")
    imported = {module: set(graph.find_modules_directly_imported_by(module)) for module in graph.modules}
    for package in STILL_TO_COME:
        for module in imported:
            if module.startswith(package):
                imported[module] = {name for name in imported[module] if not name.startswith(package)}
    TopologicalSorter(imported).prepare()  # raises CycleError that names them
