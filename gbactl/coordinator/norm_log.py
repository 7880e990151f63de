"""norms.jsonl of a run: how large the gradients of a step were, one line a step that was looked at.

A line: {"step", "mode", "dense": L2 norm of the applied dense gradient, "rows": norms of some rows' gradients}.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from pathlib import Path

from gbactl.wire.messages import Norms

NAME = "norms.jsonl"


class NormLog:
    """Puts the shards' parts of a step together; `tellers` nodes tell of each step."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._parts: defaultdict[int, list[Norms]] = defaultdict(list)

    def add(self, mode: str, part: Norms, tellers: int) -> None:
        """A node's part of a step; the last one makes the line."""
        parts = self._parts[part.step]
        parts.append(part)
        if len(parts) < tellers:
            return
        del self._parts[part.step]
        line = {
            "step": part.step, "mode": mode, "dense": math.sqrt(sum(p.square for p in parts)),
            "rows": [norm for p in parts for norm in p.rows],
        }  # fmt: skip
        with self.path.open("a") as out:
            out.write(json.dumps(line) + "\n")
