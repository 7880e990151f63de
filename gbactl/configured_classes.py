"""Import of the classes that a configuration names by `target`: policy of a mode, model, reader of a data set.

A target is MODULE.CLASS. The files of conf/ name gbactl's classes in this way, and a file or an override of the user
names a class of any installed package; there is no other registry. A configuration without a target, as most runs
have, means the target in the file of its `name`. Importing a module runs it, so a target is trusted as much as the
configuration that has it; the object itself is built from plain values, never unpickled.

An exception of a user's class is told in one sentence with its cause: the exception and the user's file and line. An
exception because the machine failed (memory, disk, network) is blamed on neither configuration nor code.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from gbactl.conf_catalogue import conf_dir, option_files
from gbactl.errors import ConfigError, GbactlError, require

GROUPS = ("mode", "model", "data")  # groups that have a target
MOST_TEXT = 300  # characters of an exception's text
# OSErrors by which the code or the configuration is wrong, and not the machine
WRONG_PATH = (FileNotFoundError, FileExistsError, IsADirectoryError, NotADirectoryError, PermissionError)
_FOREIGN: dict[type[Any], str] = {}  # classes of the user's that were found, and what names each: "model.target=..."
_LINE = re.compile(r"^target: *['\"]?([\w.]+)", re.MULTILINE)  # this is all that a process needs of YAML


@functools.cache
def builtin_target(group: str, name: str) -> str | None:
    """Return the target in gbactl's own file of an option; None without such a file."""
    path = conf_dir() / group / f"{name}.yaml"
    return _in_file(path) if name.isidentifier() and path.is_file() else None


def _in_file(path: Path) -> str | None:
    found = _LINE.search(path.read_text())
    return None if found is None else found[1]


def found_class(group: str, name: str, target: str | None, what: str, fits: Callable[[Any], bool]) -> type[Any]:
    """Import the class that `target` names or, without a target, the class of the option `name`. Raises ConfigError.

    `what`: the kind of class that is needed, in words; `fits`: whether a class is of that kind."""
    target = target or builtin_target(group, name) or _of_file(group, name)
    module, _, attribute = target.rpartition(".")
    key = f"{group}.target={target}"
    example = attribute if target == attribute else "MyClass"
    whole = bool(module) and all(word.isidentifier() for word in target.split("."))
    require(whole, f"{key} is no MODULE.CLASS; type for instance {group}.target=my_package.{example}.")
    try:
        imported = importlib.import_module(module)
        found, known = getattr(imported, attribute, None), vars(imported)
    except (Exception, SystemExit) as error:  # of the user's own module
        absent = isinstance(error, ModuleNotFoundError)
        install = f"; install its package for {sys.executable}, or add its folder to PYTHONPATH" if absent else ""
        raise ConfigError(f"{key} cannot be imported ({cause(error, module)}){install}.") from error
    if found is None:
        import difflib  # takes longer than all the rest of this module

        kinds = [word for word, each in known.items() if isinstance(each, type)]
        near = difflib.get_close_matches(attribute, kinds, 1) or [word for word in kinds if _fits(fits, module, word)]
        meant = f"type {group}.target={module}.{near[0]}" if near else f"it needs {what} of that name"
        raise ConfigError(f"{key} cannot be imported: the module {module} has no {attribute}; {meant}.")
    require(isinstance(found, type) and fits(found), f"{key} is not {what}.")
    if not found.__module__.startswith("gbactl."):
        _FOREIGN.pop(found, None)
        _FOREIGN[found] = key  # the one that was asked for last is the last one
    return found  # type: ignore[no-any-return]


def cause(error: BaseException, owner: str) -> str:
    """Describe an exception in words, with its last traceback line in the top-level package of module `owner`."""
    place, package = "", owner.partition(".")[0]
    for frame, line in _frames(error):
        file = frame.f_code.co_filename
        if _package(frame) == package and not file.startswith("<"):  # as of what a dataclass generates
            place = f", in {file}:{line}"
    text = " ".join(str(error).split())[:MOST_TEXT]
    return f"{type(error).__name__}{f': {text}' if text else ''}{place}"


def own_code_error(what: str, error: BaseException, owner: str, told: type[GbactlError] = ConfigError) -> GbactlError:
    """Make an error of type `told` from `what` a user's class (of module `owner`) does wrong, and from the exception.

    Where the machine failed, such as for lack of memory, it is a plain GbactlError."""
    of_memory = isinstance(error, MemoryError) or "can't allocate memory" in str(error)  # torch's is a RuntimeError
    machine = of_memory or (isinstance(error, OSError) and not isinstance(error, WRONG_PATH))
    return (GbactlError if machine else told)(f"{what} ({cause(error, owner)}).")


@contextlib.contextmanager
def own_code_told(told: type[GbactlError] = ConfigError) -> Iterator[None]:
    """Context in which an exception that passes through a user's class becomes an error `told` in one sentence."""
    try:
        yield
    except GbactlError:
        raise
    except (Exception, SystemExit) as error:
        if (kind := _blamed(error)) is None:
            raise
        raise own_code_error(f"{_FOREIGN[kind]} fails", error, kind.__module__, told) from error


def _blamed(error: BaseException) -> type[Any] | None:
    """Return the user's class in whose method, or else in whose package, an exception was raised; None if in none."""
    found, near = None, None
    kinds = list(reversed(_FOREIGN))
    for frame, _ in _frames(error):
        own = frame.f_locals.get("self")
        found = next((kind for kind in kinds if isinstance(own, kind)), found)
        near = next((kind for kind in kinds if kind.__module__.partition(".")[0] == _package(frame)), near)
    return found or near


def _frames(error: BaseException) -> Iterator[tuple[Any, int]]:
    """Iterate over the frames that an exception has passed, outermost first, each with its line."""
    trace = error.__traceback__
    while trace is not None:
        yield trace.tb_frame, trace.tb_lineno
        trace = trace.tb_next


def _package(frame: Any) -> str:
    return str(frame.f_globals.get("__name__")).partition(".")[0]


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
    """Return the target in an option's file on Hydra's search path. Raises ConfigError that lists the options."""
    files = option_files(group)
    target = _in_file(files[name]) if name in files else None
    if target is None:
        raise ConfigError(f"{group}.name={name} is not known; type {group}= one of: {', '.join(files)}.")
    return target
