"""Nothing in gbactl/ can be made to run what a file or a peer says: no pickle in any dress, no eval, no shell."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import gbactl

SOURCES = sorted(Path(gbactl.__file__).parent.rglob("*.py"))
#: a pool of processes that only their own parent can write to; a driver of Ray, whose cluster has to be trusted
EXCEPTIONS = {"advise/simulation_jobs.py", "engine/ray.py"}
MODULES = {
    "pickle", "_pickle", "cPickle", "cloudpickle", "dill", "joblib", "shelve", "marshal", "jsonpickle",
    "multiprocessing", "xmlrpc",
}  # fmt: skip
NAMES = {"eval", "exec", "compile", "__import__"}
#: methods that unpickle, or run what they read, by whatever name their module goes
METHODS = {
    "unsafe_load", "full_load", "load_all", "unsafe_load_all", "read_pickle", "to_pickle", "broadcast_object",
    "broadcast_object_list", "allgather_object", "all_gather_object", "gather_object", "scatter_object_list",
    "recv_object_list", "send_object_list", "rpc_sync", "rpc_async", "remote", "system", "popen",
}  # fmt: skip
LOADERS = {"torch", "np", "numpy", "yaml"}


def _keyword(call: ast.Call, name: str) -> object:
    return next((k.value.value for k in call.keywords if k.arg == name and isinstance(k.value, ast.Constant)), None)


def _imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [node.module or ""] if isinstance(node, ast.ImportFrom) else []


def _bad_call(call: ast.Call) -> bool:
    if _keyword(call, "allow_pickle") or _keyword(call, "shell"):
        return True
    function = call.func
    if isinstance(function, ast.Name):
        return function.id in NAMES
    if not isinstance(function, ast.Attribute):
        return False
    if function.attr == "load" and isinstance(function.value, ast.Name) and function.value.id in LOADERS:
        safe = function.value.id in ("np", "numpy")
        return not safe and _keyword(call, "weights_only") is not True
    return function.attr in METHODS


def found(source: str) -> Iterator[int]:
    """Lines that could run what they read."""
    for node in ast.walk(ast.parse(source)):
        names = _imported(node)
        if any(name.split(".")[0] in MODULES or name == "torch.distributed.rpc" for name in names):
            yield node.lineno  # type: ignore[attr-defined]
        if isinstance(node, ast.Call) and _bad_call(node):
            yield node.lineno


@pytest.mark.parametrize(
    "line",
    [
        "import pickle", "from cloudpickle import loads", "import torch.distributed.rpc", "import multiprocessing.pool",
        "torch.load(path)", "torch.load(path, weights_only=False)", "torch.load(path, weights_only=given)",
        "np.load(path, allow_pickle=True)", "yaml.load(text, Loader)", "yaml.unsafe_load(text)", "eval(text)",
        "exec(text)", "subprocess.run(text, shell=True)", "os.system(text)", "dist.broadcast_object_list(a)",
        "hvd.broadcast_object(a)",
    ],
)  # fmt: skip
def test_the_search_finds(line: str) -> None:
    assert list(found(line)) == [1]


@pytest.mark.parametrize(
    "line", ["torch.load(p, weights_only=True)", "np.load(p)", "yaml.safe_load(t)", "model.eval()", "re.compile(t)"]
)
def test_the_search_leaves_alone(line: str) -> None:
    assert list(found(line)) == []


def test_nothing_is_unpickled_or_evaluated() -> None:
    assert len(SOURCES) > 150
    places = [(path, line) for path in SOURCES for line in found(path.read_text())]
    assert [f"{path}:{line}" for path, line in places if not path.as_posix().endswith(tuple(EXCEPTIONS))] == []
    assert len({path for path, _ in places}) == len(EXCEPTIONS)
