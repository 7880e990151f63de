"""Process that uses one core's CPU for a window of seconds: `python -m gbactl.nodes.cpu_hog LAUNCHER CORE BEGIN END`.

Nice 0, pinned, dies with its launcher. It costs the CPU time that it is to take.
"""

from __future__ import annotations

import os
import signal
import sys
import time

from gbactl.nodes.process import die_with_parent


def main() -> None:
    """Wait until the window begins, then compute until it ends."""
    parent, core, begin, end = sys.argv[1:]
    began = time.monotonic()
    die_with_parent(int(parent))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform.startswith("linux"):
        os.sched_setaffinity(0, {int(core)})
    time.sleep(float(begin))
    last = began + float(end) if end else float("inf")
    while time.monotonic() < last:
        for _ in range(100_000):
            pass


if __name__ == "__main__":
    main()
