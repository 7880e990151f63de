"""Cell of the scale study: the pipe between a launcher and a host's agent, in this process.

Microseconds of CPU to pack a message, write it into a pipe, read and decode it; and the rate of log output, in
messages of one line and of the largest piece.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gbactl.engine.agent_connection import READ_BYTES, MessageDecoder, pack, write_all

FRAMES, LINE, PIECE = 20_000, 100, 1 << 15


def through(name: str, fields: dict[str, Any], count: int) -> float:
    """Seconds of CPU for `count` messages through a pipe."""
    source, sink = os.pipe()
    reader = MessageDecoder()
    began, taken = time.process_time(), 0
    for _ in range(count):
        write_all(sink, pack(name, fields))
        taken += len(reader.feed(os.read(source, READ_BYTES)))
    seconds = time.process_time() - began
    os.close(source)
    os.close(sink)
    assert taken == count
    return seconds


def run(overrides: Sequence[str], folder: Path) -> dict[str, Any]:
    """Run the cell; return microseconds a pulse and a line, MB/s of log output, and bytes of a start."""
    return {
        "pulse_us": 1e6 * through("pulse", {}, FRAMES) / FRAMES,
        "line_us": 1e6 * through("log", {"name": "W1", "data": b"x" * LINE}, FRAMES) / FRAMES,
        "log_mb_a_second": PIECE * 2000 / through("log", {"name": "W1", "data": b"x" * PIECE}, 2000) / 1e6,
        "pulse_bytes": len(pack("pulse", {})),
    }  # fmt: skip
