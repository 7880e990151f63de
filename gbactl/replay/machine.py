"""What bits depend on beside the log: processor, torch, threads."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from gbactl.kernels.denormals import flushed

SAME = {"machine": "processor", "cpu_flags": "processor's vector instructions", "torch": "version of torch"}


def differences(logged: dict[str, Any], here: dict[str, Any]) -> list[str]:
    """What of this machine's header is not as in a log's; [] where the same bits are due."""
    return [name for key, name in SAME.items() if logged[key] != here[key]]


@contextlib.contextmanager
def threads(count: int) -> Iterator[None]:
    """So many threads for torch inside, and denormal numbers flushed as on every node of a run."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        with flushed():
            yield
    finally:
        torch.set_num_threads(before)
