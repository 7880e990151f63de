"""Gradient norms of a run (norms.jsonl), one line per sampled step.

A line: {"step", "mode", "dense": L2 norm of the applied dense gradient, "rows": norms of some rows' gradients}.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from pathlib import Path

from gbactl.wire.messages import GradientNorms

NAME = "norms.jsonl"


class NormLog:
    """Combines the nodes' shares of a step's gradient norms and writes them; `tellers` nodes report each step."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._parts: defaultdict[int, list[GradientNorms]] = defaultdict(list)

    def add(self, mode: str, part: GradientNorms, tellers: int) -> None:
        """Add a node's share of a step's norms; the last one writes the line."""
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
