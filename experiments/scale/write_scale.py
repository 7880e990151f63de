"""Write results.md of the scale study from its cells, with the arithmetic. Part of `make scale`; costs a second."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import mean

from arithmetic import Costs, Job, carried, coordinators, first, loads
from report_tables import markdown
from study_results import Done, Results

from gbactl.cpu import available_cores

STUDY = Results(Path(__file__).resolve().with_name("sweep.yaml"))
VALUE_NS = 0.6  # of a server for a float that it copies or applies: cost.dense_pull_ns + dense_apply_ns of conf/cost
SIZES = ((100, 10), (1000, 100), (10000, 1000))
SERVERS = (1, 4, 10, 20, 50, 100)
TEXT = """# What limits a run at 100, 1,000 and 10,000 workers

Written by `make scale` (`experiments/scale/write_scale.py`) from cells.jsonl; code {code}.
{machine}

{loads}
"""


def number(value: float) -> str:
    """Format a number with about three digits."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def table(heads: str, rows: Iterable[Sequence[object]]) -> str:
    """Table whose first column is text, and the others numbers or text."""
    return markdown(heads.split(" | "), ([_cell(each) for each in row] for row in rows)).rstrip()


def _cell(value: object) -> str:
    return number(value) if isinstance(value, int | float) else str(value)


def core(cells: Sequence[Done]) -> str:
    """Table of the coordinator without sockets."""
    heads = "mode | workers | servers | us a gradient | messages a gradient | log bytes a gradient | start, s | end, s"
    keys = ("us", "messages", "log_bytes", "start_seconds", "end_seconds")
    return table(heads, ([f"`{c.options['mode']}`", int(c.options["cluster.workers"]),
        int(c.options["cluster.servers"]), *(c.result[key] for key in keys)] for c in cells))  # fmt: skip


def sockets(cells: Sequence[Done]) -> str:
    """Table of the coordinator's process with its connections."""
    heads = "mode | workers | servers | gradients a second | us a gradient | messages a gradient | KB a connection"
    heads += " | descriptors | ms to join"
    keys = ("rate", "us", "messages", "kb_a_node", "descriptors", "joining_ms")
    return table(heads, ([f"`{c.options['mode']}`", int(c.options["cluster.workers"]),
        int(c.options["cluster.servers"]), *(c.result[key] for key in keys)] for c in cells))  # fmt: skip


def processes(cells: Sequence[Done]) -> str:
    """Table of local processes."""
    heads = (
        "mode | workers | start, s | gradients a second | us of the coordinator | us of the server | us of workers 0, 1"
    )
    heads += (
        " | MB of a worker (proportional) | its descriptors | the server's | the coordinator's | log bytes a gradient"
    )
    rows = []
    for c in cells:
        r, held = c.result, c.result["by_role"]
        us = [r["us"].get(role, 0.0) for role in "CSW"]
        files = [held[role]["descriptors"] for role in "WSC"]
        rows.append([f"`{c.options['mode']}`", int(c.options["cluster.workers"]), r["start_seconds"], r["rate"], *us,
                     held["W"]["proportional_mb"], *files, r["event_log"]])  # fmt: skip
    return table(heads, rows)


def virtual(cells: Sequence[Done]) -> str:
    """Table of virtual clusters: rates, where the time goes, and the simulation's own cost."""
    heads = "mode | workers | servers | gradients a second and worker | of 20 | coordinator busy | servers busy"
    heads += " | interface in | compute | waits for a batch | for rows | in the all-reduce | staleness, mean | p99"
    heads += " | simulation, s | its MB | us a batch"
    rows = []
    for c in cells:
        r, workers = c.result, int(c.options["cluster.workers"])
        busy, shares, rate = r["busy"], r["shares"], r["gradients_a_second"] / workers
        name = f"`{c.options['mode']}`"
        name += f", {c.options['cost.coordinator_message_us']} us" if "cost.coordinator_message_us" in c.options else ""
        waits = (shares["compute"], shares["batch"], shares["rows"], shares["all_reduce"])
        own = r["simulation"]
        rows.append([name, workers, int(c.options["cluster.servers"]), rate, f"{rate / 20:.1%}",
            *(f"{busy[key]:.0%}" for key in ("coordinator", "servers", "servers_in")), *(f"{w:.0%}" for w in waits),
            r["staleness"]["mean"], r["staleness"]["p99"], own["seconds"] + own["build_seconds"], own["peak_mb"],
            own["us_a_batch"]])  # fmt: skip
    return table(heads, rows)


def costs() -> Costs:
    """Costs for the arithmetic, from the measured cells."""
    by = {(c.options["cluster.workers"], c.options["cluster.servers"], c.options["mode"]): c.result
          for c in STUDY.done("sockets")}  # fmt: skip
    one, many = by["64", "1", "async"], by["64", "16", "async"]
    shard = (many["us"] - one["us"]) / 15
    local = [c for c in STUDY.done("processes") if c.options["mode"] == "async"]
    start = {int(c.options["cluster.workers"]): c.result["start_seconds"] for c in local}
    [pipe] = STUDY.done("pipe")
    return Costs(
        one["us"] - shard, shard, mean(c.result["us"]["S"] for c in local if c.options["cluster.workers"] != "1"),
        VALUE_NS, by["64", "1", "async"].get("log_bytes", 55.0), by["1000", "1", "async"]["kb_a_node"],
        (start[64] - start[4]) / 60, pipe.result["pulse_us"],
    )  # fmt: skip


def arithmetic(given: Costs) -> str:
    """Tables of the arithmetic, a column for each number of workers."""
    parts = []
    for name, share in (("async", 1.0), ("gba, sync", None)):
        jobs = [Job(n, s, orders=share or 1 / n) for n, s in SIZES]
        found = [loads(job, given) for job in jobs]
        heads = f"`{name}`" + "".join(f" | {job.workers:,} workers, {job.servers:,} servers" for job in jobs)
        rows = []
        for lines in zip(*found, strict=True):
            told = [f"{number(each.carries)} {each.unit}".strip() + f" ({number(each.factor)}x)" for each in lines]
            rows.append([lines[0].resource, *told])
        breaks = [first(each) for each in found]
        rows.append(["**breaks first**", *(f"{each.resource}, by {number(each.factor)}" for each in breaks)])
        parts.append(table(heads, rows))
    return "\n\n".join(parts)


def rates(given: Costs) -> str:
    """Table of the gradients a second that each resource can carry, by the number of servers."""
    rows: list[list[object]] = []
    for servers in SERVERS:
        one, many = (carried(Job(1000, servers, orders=share), given) for share in (1.0, 0.001))
        coordinator, process, interface = one
        each = [one[coordinator], many[coordinator], one[process], one[interface]]
        rows.append([str(servers), *each, min(each[0], *each[2:]), min(each[1:])])
    heads = "servers | coordinator, `async` | `gba`, `sync` | a server's process | its interface | least, `async`"
    return table(f"{heads} | `gba`, `sync`", rows)


def fewer(given: Costs, cost: dict[str, float]) -> str:
    """Table of the coordinator's load as it is, with packed messages, and with one announcement a gradient."""
    frames = cost["announcement_among_others_us"] + cost["order_sent_us"]
    rows: list[list[object]] = []
    for name, share in (("async", 1.0), ("gba, sync", None)):
        for n, servers in SIZES:
            factors = coordinators(Job(n, servers, orders=share or 1 / n), given, frames)
            rows.append([f"`{name}`", n, servers, *(f"{number(each)}x" for each in factors)])
    return table("mode | workers | servers | as it is | packed | one announcement a gradient", rows)


def main() -> None:
    """Write results.md."""
    given = costs()
    [frame] = (each.result for each in STUDY.done("frames"))
    shown = {
        "The coordinator without sockets": core([*STUDY.done("core"), *STUDY.done("shards")]),
        "The coordinator's process with its connections": sockets(STUDY.done("sockets")),
        "Processes of this machine, tiny batches": processes(STUDY.done("processes")),
        "A launcher's pipe to an agent": table(
            "what | value", (each for each in STUDY.done("pipe")[0].result.items() if each[0] != "phases")),
        "A frame": table("what | us", (each for each in frame.items() if each[0] != "phases")),
        "Virtual cluster": virtual(STUDY.found("virtual")),
        "Arithmetic": f"Costs: `{given}`.\n\n{arithmetic(given)}",
        "Gradients a second that each can carry": rates(given),
        "The coordinator's load with fewer messages": fewer(given, frame),
    }  # fmt: skip
    codes = sorted({c.code for part in ("core", "sockets", "processes", "virtual") for c in STUDY.found(part)})
    machine = f"Machine: {len(available_cores())} shared cores, {platform.machine()}."
    body = "\n\n".join(f"## {head}\n\n{text}" for head, text in shown.items())
    path = STUDY.place / "results.md"
    path.write_text(TEXT.format(code=", ".join(codes), machine=machine, loads=body))
    print(path)


if __name__ == "__main__":
    main()
