"""Row kernels (gather, gradient sums, optimizer steps): compiled, or else in torch with the same bits.

Importing costs nothing; `load` opens a library of 200 KB, or imports torch for the twin.
"""

from __future__ import annotations

import functools
import os

from gbactl.errors import ConfigError, MissingDependencyError
from gbactl.kernels.base import Kernels
from gbactl.kernels.half_precision import CODECS, Codec

ENVIRONMENT = "GBACTL_KERNELS"


@functools.cache
def _native() -> Kernels:
    from gbactl.kernels.build import find_library
    from gbactl.kernels.native import NativeKernels

    path = find_library()
    if path is None:
        raise MissingDependencyError(
            "The compiled kernels are not there; install a C++ compiler and type "
            "`python -m gbactl.kernels.build`, or set GBACTL_KERNELS=twin."
        )
    return NativeKernels(path)


@functools.cache
def _torch() -> Kernels:
    from gbactl.kernels.torch_kernels import TorchKernels

    return TorchKernels()


def load(which: str | None = None) -> Kernels:
    """Load the row kernels `native` (compiled) or `twin` (torch); default: GBACTL_KERNELS, else native if present.

    Raises ConfigError on another name, MissingDependencyError when `native` is demanded and missing.
    """
    which = which or os.environ.get(ENVIRONMENT) or "auto"
    if which not in ("auto", "native", "twin"):
        raise ConfigError(f"{ENVIRONMENT}={which} is not known; set it to native or twin, or leave it out.")
    if which == "twin":
        return _torch()
    try:
        return _native()
    except MissingDependencyError:
        if which == "native":
            raise
        return _torch()


def codec_of(name: str) -> Codec | None:
    """Return the codec of a two-byte float type by its name (fp16 or bf16); None for fp32, sent as it is."""
    return load().codec(name) if name in CODECS else None


__all__ = ["ENVIRONMENT", "Kernels", "codec_of", "load"]
