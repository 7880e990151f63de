"""The entry of every child process: `python -m gbactl.cluster.process`, its bootstrap on standard input.

Logs to logs/<node>.log in the run directory, each line prefixed with the node's name. Dies with its launcher.
"""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import sys
from pathlib import Path

PR_SET_PDEATHSIG = 1
FAILED_LINE = "failed: "
NOTICED_LINE = "noticed: "


def die_with_parent(parent: int) -> None:
    """Be killed when the launcher dies, however it dies (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)


def set_up_log(run_dir: Path, node: str) -> None:
    """One log file per node; warnings and what the interpreter prints go there too."""
    handler = logging.FileHandler(run_dir / "logs" / f"{node}.log")
    handler.setFormatter(logging.Formatter(f"%(asctime)s.%(msecs)03d {node} %(levelname)s %(message)s", "%H:%M:%S"))
    logger = logging.getLogger("gbactl")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)


def main() -> None:
    """Read the bootstrap, be that node, exit 0; on failure log one sentence (and the traceback), exit 1."""
    parent = int(sys.argv[1])
    die_with_parent(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    line = sys.stdin.buffer.readline()
    from gbactl.cluster import bootstrap
    from gbactl.errors import GbactlError, PeerGoneError

    boot = bootstrap.Bootstrap.loads(line)
    set_up_log(Path(boot.run_dir), boot.log_name)
    log = logging.getLogger("gbactl.process")
    log.info("pid %d, threads %s", os.getpid(), os.environ.get("OMP_NUM_THREADS"))
    run = {"coordinator": bootstrap.run_coordinator, "server": bootstrap.run_server, "worker": bootstrap.run_worker}
    try:
        run[boot.role](boot)
    except PeerGoneError as error:
        log.error("%s%s", NOTICED_LINE, error)
        sys.exit(1)
    except GbactlError as error:
        log.error("%s%s", FAILED_LINE, error)
        sys.exit(1)
    except Exception as error:
        log.exception("%s%s: %s", FAILED_LINE, type(error).__name__, error)
        sys.exit(1)
    log.info("done")
    # skip torch's and Horovod's teardown: nothing is left to save
    logging.shutdown()
    os._exit(0)


if __name__ == "__main__":
    main()
