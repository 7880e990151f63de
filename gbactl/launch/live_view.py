"""Live view of a running job for `gbactl top`: its status once a second, and keys that switch its mode."""

from __future__ import annotations

import contextlib
import os
import select
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gbactl.atomic_files import CONFIG
from gbactl.errors import GbactlError, UsageError
from gbactl.launch.control_socket import FILE, ControlClient, locked, mode_with
from gbactl.launch.progress import duration, shown_path
from gbactl.launch.run_dir import RUNS, find
from gbactl.policies.policy import names
from gbactl.report.failures_and_slowdowns import SLOW, activity_shares, shares_of
from gbactl.switching.switch_texts import answer, switch_sentence

if TYPE_CHECKING:
    from rich.console import RenderableType

SECONDS = 1.0
MOST_WORKERS, MOST_SERVERS, MOST_EVENTS = 24, 8, 6
FEWEST = 2  # workers, servers and events that a low terminal still shows
OTHER_LINES = 14  # of the screen: all but the rows of its two tables and the events
Status = Mapping[str, Any]


def running(runs: Path = RUNS) -> Path:
    """Find the directory of the only job that runs below a folder. Raises UsageError unless there is exactly one.

    A job whose launcher was killed leaves its control socket's file, but not its lock."""
    files = (path for depth in ("*", "*/*") for path in runs.glob(f"{depth}/{FILE}"))
    found = sorted(path.parent for path in files if locked(path.parent))
    if len(found) == 1:
        return found[0]
    if found:
        raise UsageError(f"{len(found)} jobs run; type one of: {', '.join(f'gbactl top {each}' for each in found)}.")
    raise UsageError(f"No job runs below {runs}/; type gbactl train ..., or gbactl top RUN for another directory.")


def watch(run: str | None, uri: str | None) -> None:
    """Show a running job to its end: a screen on a terminal, else a line a second. Raises UsageError, GbactlError."""
    run_dir = running() if run is None else find(run, uri, holding=CONFIG)
    with contextlib.suppress(KeyboardInterrupt), ControlClient(run_dir) as client:
        if sys.stdin.isatty() and sys.stdout.isatty():
            _screen(client, run_dir)
            return
        while (found := _asked(client)) is not None:
            print(line(found), flush=True)
            time.sleep(SECONDS)
        print(_ended(run_dir), flush=True)


def _asked(client: ControlClient) -> Status | None:
    """Ask the job for its status; None if it has ended."""
    try:
        return client.status()
    except GbactlError:
        if (client.run_dir / FILE).exists():
            raise
        return None


def _ended(run_dir: Path) -> str:
    return f"The run has ended; type: gbactl report {shown_path(run_dir)}"


def line(found: Status) -> str:
    """Write a status in one line."""
    if "mode" not in found:
        return "starting"
    slow = [f"{name} {times:.1f}x slower" for name, times in slowness(found).items() if times >= SLOW]
    parts = [
        f"{duration(found['seconds'])} {found['mode']} {found['label']} {share(found):.0%}", f"step {found['step']:,}",
        f"{_rate(found)} samples/s", *_quality(found),
        f"staleness {found['staleness']['mean']:.2f}", f"{found['live']} workers", *slow,
    ]  # fmt: skip
    return ", ".join(parts)


def _rate(found: Status) -> str:
    """Format the present throughput; "-" if there is none, as in an evaluation."""
    return "-" if found["eps"] is None else f"{found['eps']:,.0f}"


def _quality(found: Status) -> list[str]:
    loss, auc = found.get("loss"), found.get("auc")
    return [*([] if loss is None else [f"loss {loss:.4f}"]), *([] if auc is None else [f"AUC {auc:.4f}"])]


def share(found: Status) -> float:
    """Compute the share of the current day or epoch that is done."""
    done: float = found["round_finished"] / max(1, found["round_samples"])
    return min(1.0, done)


def slowness(found: Status) -> dict[str, float]:
    """Compute each worker's computing time per sample relative to the median worker's; {} for fewer than two."""
    speeds = {name: speed for name, speed in found.get("speeds", {}).items() if speed > 0}
    if len(speeds) < 2:
        return {}
    usual = statistics.median(speeds.values())
    return {name: usual / speed for name, speed in speeds.items()}


def screen(name: str, found: Status, said: str, height: int = 100) -> RenderableType:
    """Draw a status for a terminal: the job, its processes, what happened, and the keys or a question in `said`.

    In a terminal of few lines (`height`) it has fewer processes and events, so that `said` is not cut off."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    if "mode" not in found:
        return Group(Text(f"{name}: starting", style="bold"), Text(said, style="dim"))
    stale = found["staleness"]
    head = Table.grid(padding=(0, 2))
    for what, value in (
        (
            "mode",
            f"{found['mode']}, {found['label']} ({found['round'] + 1} of {found['rounds']}), {share(found):.0%} of it",
        ),
        ("step", f"{found['step']:,} after {duration(found['seconds'])}, {found['samples']:,} samples"),
        ("samples/s", f"{_rate(found)} now, {found['round_eps']:,.0f} in this {found['label'].split()[0]}"),
        ("training", ", ".join(_quality(found)) or "-"),
        ("staleness", f"mean {stale['mean']:.2f}, p50 {stale['p50']:.0f}, p99 {stale['p99']:.0f} steps"),
    ):
        head.add_row(Text(what, style="dim"), value)
    shares, free = server_shares(found), height - OTHER_LINES - len(found["lost"])
    happened = [*map(switch_sentence, found["switches"]), *found.get("failures", ())]
    events = happened[-max(FEWEST, min(MOST_EVENTS, free // 4)) :]
    free -= 2 * len(events)  # each may need two lines
    servers = min(len(shares), MOST_SERVERS, max(FEWEST, free // 3))
    workers = min(len(found["workers"]), MOST_WORKERS, max(FEWEST, free - servers - bool(shares) * 3))
    parts = [Text(name, style="bold", overflow="fold"), head, Text(), _workers(found, workers)]
    parts += [Text(), _servers(shares, servers)] if shares else []
    parts += [Text(), *(Text(each) for each in events)] if events else []
    return Group(*parts, Text(), Text(said, style="bold" if said.endswith("?") else "dim"))


def _workers(found: Status, most: int) -> RenderableType:
    """Table of the slowest workers."""
    from rich.table import Table

    table, slow = Table(box=None, pad_edge=False, header_style="dim", caption_justify="left"), slowness(found)
    times_of = found.get("times", {})
    for heading in ("worker", "samples/s", "computes/s", "sample time / median's", "compute", "waits most for"):
        table.add_column(heading, justify="left" if heading.startswith("w") else "right")
    rows = sorted(found["workers"], key=lambda name: (-slow.get(name, 0.0), int(name[1:])))[:most]
    for name in sorted(rows, key=lambda name: int(name[1:])):
        times, speed = slow.get(name), found.get("speeds", {}).get(name)
        own = times_of.get(name, {})
        compute = shares_of(own).get("compute")
        table.add_row(
            name, f"{found['workers'][name]:,.0f}", "-" if speed is None else f"{speed:,.0f}",
            "-" if times is None else f"{times:.2f}", "-" if compute is None else f"{compute:.0%}", longest_wait(own),
            style="red" if times is not None and times >= SLOW else "",
        )  # fmt: skip
    for worker in found["lost"]:
        table.add_row(f"W{worker}", "lost", style="red")
    if len(found["workers"]) > most:
        table.caption = f"{len(found['workers']) - most} faster ones"
    return table


def server_shares(found: Status) -> dict[str, dict[str, float]]:
    """Compute the share of time that each server spent in each activity in the latest second of training."""
    each = activity_shares({"processes": found.get("times")})
    return {name: shares for name, shares in each.items() if name.startswith("S")}


def _servers(each: Mapping[str, Mapping[str, float]], most: int) -> RenderableType:
    """Table of the busiest servers."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="dim")
    for heading in ("server", "idle", "kernels", "messages"):
        table.add_column(heading, justify="left" if heading == "server" else "right")
    busiest = sorted(each, key=lambda name: each[name].get("idle", 1.0))[:most]
    for name in sorted(busiest, key=lambda name: int(name[1:])):
        table.add_row(name, *(f"{each[name].get(part, 0.0):.0%}" for part in ("idle", "kernels", "messages")))
    if len(each) > most:
        table.add_row(f"and {len(each) - most} with less to do", style="dim")
    return table


def longest_wait(times: Mapping[str, float]) -> str:
    """Name the kind of wait that took most of a worker's latest second, with its share; "-" if it did not wait."""
    waits = {activity: share for activity, share in shares_of(times).items() if activity != "compute" and share > 0}
    if not waits:
        return "-"
    longest = max(waits, key=lambda activity: waits[activity])
    return f"{longest} {waits[longest]:.0%}"


class Keys:
    """Reaction to keys: q ends the view, s asks for a mode, and a mode is confirmed with y."""

    HINT = "q: leave the job alone and quit   s: switch the mode"

    def __init__(self, modes: Sequence[str]) -> None:
        self.modes = dict(zip("abcdefghijklmnopqrstuvwxyz", modes, strict=False))
        self.said, self.chosen, self._asks = self.HINT, "", False

    def on_key(self, key: str) -> str | None:
        """Handle a key; return "quit", the name of a mode to switch to, or None."""
        if self.chosen:
            mode, self.chosen, self.said = self.chosen, "", self.HINT
            return mode if key == "y" else None
        if self._asks:
            self._asks, self.chosen = False, self.modes.get(key, "")
            self.said = f"Switch to {self.chosen} (y: yes, any other key: no)?" if self.chosen else self.HINT
        elif key == "s":
            self._asks = True
            self.said = f"{'   '.join(f'{letter}: {mode}' for letter, mode in self.modes.items())}   Which mode?"
        elif key in ("q", "\x03"):
            return "quit"
        return None


def _screen(client: ControlClient, run_dir: Path) -> None:
    from rich.live import Live

    keys, name, found = Keys(names()), shown_path(run_dir), _asked(client)
    with _single_keys() as read, Live(auto_refresh=False, screen=True) as live:
        due = time.monotonic() + SECONDS
        while found is not None:
            live.update(screen(name, found, keys.said, live.console.height), refresh=True)
            key = read(max(0.0, due - time.monotonic()))
            action = keys.on_key(key) if key else None
            if action == "quit":
                return
            if action:
                keys.said = _switched(run_dir, action)
            if time.monotonic() >= due:
                found, due = _asked(client), time.monotonic() + SECONDS
    print(_ended(run_dir))


def _switched(run_dir: Path, mode: str) -> str:
    """Ask the job for a switch, on a connection of its own; return what it answered."""
    try:
        with ControlClient(run_dir) as asking:
            return answer(asking.switch(mode_with(mode, ()), wait=False))
    except GbactlError as error:
        return str(error)


@contextlib.contextmanager
def _single_keys() -> Iterator[Any]:
    """Context that reads single keys of the terminal; yields a function: seconds to wait -> key, "" for none."""
    import termios
    import tty

    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)

    def read(seconds: float) -> str:
        ready, _, _ = select.select([terminal], [], [], seconds)
        return os.read(terminal, 1).decode(errors="replace") if ready else ""

    try:
        tty.setcbreak(terminal)
        yield read
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)
