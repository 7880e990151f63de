"""gbactl: train CTR models in several distributed modes on one cluster, and compare their AUC and throughput.

In Python, `train`, `compare` and `load` (see api.py) are imported when they are first used. Their types are in the stub
beside this file, so that a module which only asks for the version does not import them.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0"
__all__ = ["Comparison", "Run", "__version__", "compare", "errors", "load", "train"]


def __getattr__(name: str) -> Any:
    if name == "errors":
        return import_module("gbactl.errors")
    if name not in __all__:
        raise AttributeError(f"module 'gbactl' has no attribute {name!r}")
    return getattr(import_module("gbactl.api"), name)


def __dir__() -> list[str]:
    return __all__
