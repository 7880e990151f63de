"""Import of the classes that a configuration names by `target`: policy of a mode, model, reader of a data set.

A target is MODULE.CLASS. The files of conf/ name gbactl's classes in this way, and a file or an override of the user
names a class of any installed package; there is no other registry. A configuration without a target, as most runs
have, means the target in the file of its `name`. Importing a module runs it, so a target is trusted as much as the
configuration that has it; the object itself is built from plain values, never unpickled.
"""

from __future__ import annotations

import functools
import importlib.util
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gbactl.conf_catalogue import conf_dir, option_files
from gbactl.errors import ConfigError, require

GROUPS = ("mode", "model", "data")  # groups that have a target
_LINE = re.compile(r"^target: *['\"]?([\w.]+)", re.MULTILINE)  # this is all that a process needs of YAML


@functools.cache
def own(group: str, name: str) -> str | None:
    """Return the target in gbactl's own file of an option; None without such a file."""
    path = conf_dir() / group / f"{name}.yaml"
    return _in_file(path) if name.isidentifier() and path.is_file() else None


def _in_file(path: Path) -> str | None:
    found = _LINE.search(path.read_text())
    return None if found is None else found[1]


def found_class(group: str, name: str, target: str | None, what: str, fits: Callable[[Any], bool]) -> type[Any]:
    """Import the class that `target` names or, without a target, that of the group's option `name`. Raises ConfigError.

    `what`: the kind of class that is needed, in words; `fits`: whether a class is one. Raises ConfigError."""
    target = target or own(group, name) or _of_file(group, name)
    module, _, attribute = target.rpartition(".")
    key = f"{group}.target={target}"
    require(bool(module), f"{key} is no MODULE.CLASS; type for instance {group}.target=my_package.{attribute}.")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except AttributeError:
        import difflib  # takes longer than all the rest of this module

        known = [word for word, each in vars(sys.modules[module]).items() if isinstance(each, type)]
        near = difflib.get_close_matches(attribute, known, 1) or [word for word in known if _fits(fits, module, word)]
        meant = f"type {group}.target={module}.{near[0]}" if near else f"it needs {what} of that name"
        raise ConfigError(f"{key} cannot be: the module {module} has no {attribute}; {meant}.") from None
    except Exception as error:  # of the user's own module
        raise ConfigError(
            f"{key} cannot be imported ({type(error).__name__}: {' '.join(str(error).split())}); install its package "
            f"for {sys.executable}, or add its folder to PYTHONPATH."
        ) from error
    require(isinstance(found, type) and fits(found), f"{key} is not {what}.")
    return found  # type: ignore[no-any-return]


def top_package(target: str) -> Path | None:
    """Return the folder of a target's top-level package, or its file if it is a single module; None if unknown."""
    found = importlib.util.find_spec(target.partition(".")[0])
    origin = None if found is None or found.origin is None else Path(found.origin)
    return origin if origin is None or found is None or not found.submodule_search_locations else origin.parent


def _fits(fits: Callable[[Any], bool], module: str, word: str) -> bool:
    found = vars(sys.modules[module])[word]
    return found.__module__ == module and fits(found)


def in_files() -> set[str]:
    """Return the import paths of all classes named as `target` in files on Hydra's search path."""
    paths = [path for group in GROUPS for path in option_files(group).values()]
    return {target for path in paths if (target := _in_file(path)) is not None}


def _of_file(group: str, name: str) -> str:
    """Return the target in a file of Hydra's search path. Raises ConfigError that lists the options."""
    files = option_files(group)
    target = _in_file(files[name]) if name in files else None
    if target is None:
        raise ConfigError(f"{group}.name={name} is not known; type {group}= one of: {', '.join(files)}.")
    return target
