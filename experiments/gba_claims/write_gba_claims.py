"""Write results.md: the tables of `gbactl report` and of the scripts in this folder, each with its origin.

    .venv/bin/python experiments/gba_claims/write_gba_claims.py

Costs 3 seconds a table; reads the tracking store and runs/studies/. Part of `make gba-claims`.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
from dataclasses import dataclass

import choose_best
import gradient_norms
import speedups
import study
import study_results
from cells import CHOSEN, HERE, SWEEP, done, options, part, seeds

VERSION = study.code_version()
DAYS = "auc/day 3,auc/day 4,eps/day 3"
SPEED = ("speed_local", "speed")
EPOCHS = "auc/epoch 3,auc/epoch 4,eps/epoch 3"


@dataclass(frozen=True)
class Table:
    """Table made by `gbactl report` from the runs of one part; `more` are its options."""

    title: str
    part: str
    more: tuple[str, ...]


def command(table: Table) -> list[str]:
    """Command line that prints the table."""
    where = f"tags.part = '{table.part}' and tags.code = '{VERSION}'"
    return ["gbactl", "report", "--experiment", "gba_claims", "--where", where, *table.more, "--format", "md"]


def report(table: Table) -> str:
    """Run the command and return the table. Raises SystemExit with the error message of `gbactl report`."""
    arguments = [sys.executable, "-m", *command(table)]
    made = subprocess.run(arguments, capture_output=True, text=True, check=False)
    if made.returncode:
        raise SystemExit(f"{shlex.join(command(table))}\n{made.stderr.strip()}")
    return without_slowdowns(made.stdout)


def without_slowdowns(text: str) -> str:
    """Remove a report's slow-down table (a line for each slow worker), which the command still prints."""
    blocks = [block for block in text.split("\n\n") if "| slowed |" not in block.splitlines()[0]]
    return "\n\n".join("\n".join(line for line in b.split("\n") if not line.startswith("- slowed:")) for b in blocks)


def shown(table: Table) -> str:
    """Title, table, and its command, as Markdown."""
    return f"### {table.title}\n\n{report(table)}\n```text\n{shlex.join(command(table))}\n```\n"


def origin(name: str) -> str:
    """Sentence on the runs of a part."""
    return study_results.origin(SWEEP, name)


def taking_over(name: str, at: str, metrics: str) -> list[str]:
    """Section of part 1 on some data: after two rounds of the mode, and after one more of sync."""
    third, fourth = f"auc/{at} 3", f"auc/{at} 4"
    options = ("--by", "tags.takes_over", "--metric", metrics)
    return [
        origin(name),
        shown(Table("After two of the mode", name, (*options, "--on", third))),
        shown(Table("After one more of sync", name, (*options, "--on", fourth))),
    ]


def _rates() -> str:
    """Sentence on these cells' learning rate, and on sync's best one."""
    rate = options(part("tuning_free_fast").cells[0].overrides)["optim.lr"]
    return f"Rate {rate}; sync's best in part 0 is {choose_best.sync_rate(done('rate'))}.\n"


def frappe() -> list[str]:
    """Section of part 1 on Frappe, or the reason why it is missing."""
    missing = part("frappe").missing
    if missing:
        return [f"Left out: {missing} was not set.\n"]
    return taking_over("frappe", "epoch", EPOCHS)


def derived() -> list[str]:
    """Section of part 2."""
    by_workers = ("--by", "mode,cluster.workers", "--baseline", "gba")
    by_tag = ("--by", "tags.derived", "--baseline", "gba")
    return [
        f"Chosen on seed {', '.join(seeds(part(choose_best.GRIDS[0]).cells))}, which is not reported:\n",
        choose_best.fragment(choose_best.settings()),
        study_results.origin(CHOSEN, "derived"),
        shown(Table("Each at its best, gba at sync's rate", "derived", by_tag)),
        origin("region"),
        shown(Table("By staleness: more workers, nothing tuned", "region", by_workers)),
    ]


def sections() -> list[tuple[str, list[str]]]:
    """Headings of the file and their contents."""
    rates = Table("By rate", "rate", ("--by", "optim.lr"))
    by_option = Table("By option", "ablation", ("--by", "tags.ablation", "--baseline", "default"))
    return [
        ("0. sync's learning rate", [origin("rate"), shown(rates)]),
        ("1. Tuning-free: synthetic, Adam's usual rate .001", taking_over("tuning_free", "day", DAYS)),
        ("1. Tuning-free: synthetic, a rate for few steps", [_rates(), *taking_over("tuning_free_fast", "day", DAYS)]),
        ("1. Tuning-free: Frappe", frappe()),
        ("2. Against derived asynchronous modes", derived()),
        (
            "3. Speed under strained resources",
            [*map(origin, SPEED), speedups.fragment(SPEED, HERE / "speedups.png")],
        ),
        ("4. Ablations", [origin("ablation"), shown(by_option)]),
        (
            "5. The obstacle",
            [origin("norms"), gradient_norms.fragment("norms", HERE / "norms.png")],
        ),
    ]


def main() -> None:
    """Write results.md."""
    text = [f"{study_results.title('gba-claims')}\n"]
    for title, below in sections():
        text += [f"## {title}\n", *below]
    (HERE / "results.md").write_text("\n".join(text))


if __name__ == "__main__":
    main()
