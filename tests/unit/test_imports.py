"""Modules that import each other in a circle, which the contracts in pyproject.toml see only between siblings."""

from __future__ import annotations

from graphlib import TopologicalSorter

import grimp


def test_no_module_imports_itself_by_way_of_others() -> None:
    """A package's __init__ counts as a module of its own, and so do imports for typing and within functions."""
    graph = grimp.build_graph("gbactl")
    imported = {module: set(graph.find_modules_directly_imported_by(module)) for module in graph.modules}
    TopologicalSorter(imported).prepare()  # raises CycleError that names them
