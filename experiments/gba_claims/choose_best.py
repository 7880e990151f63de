"""Part 2: choose the options with the best AUC of every derived mode, on seeds reserved for choosing.

    .venv/bin/python experiments/gba_claims/choose_best.py      # writes runs/studies/gba_claims/chosen.yaml

The chosen options are then trained on other seeds. Costs a second; needs the cells of rate, derived_grid_steps and
derived_grid_batches.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import yaml
from cells import CHOSEN, SWEEP, Done, done, size

GRIDS = ("derived_grid_steps", "derived_grid_batches")
OWN = {"hop_bs": "mode.bound", "hop_bw": "mode.backup"}
SEEDS = {"default": 5, "full": 10}


@dataclass(frozen=True)
class Tried:
    """Setting of a mode, with its mean AUC over the seeds reserved for choosing."""

    mode: str
    rate: str
    own: str
    auc: float

    @property
    def line(self) -> list[str]:
        """Overrides of this setting."""
        own = [f"{OWN[self.mode]}={self.own}"] if self.mode in OWN else []
        return [f"mode={self.mode}", *own, f"optim.lr={self.rate}"]


def tried(cells: Iterable[Done]) -> list[Tried]:
    """Settings of a grid, each with its mean AUC."""
    found: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    for cell in cells:
        mode = cell.options["mode"]
        found[mode, cell.options["optim.lr"], cell.options.get(OWN.get(mode, ""), "")].append(cell.result["auc"])
    return [Tried(*key, statistics.fmean(aucs)) for key, aucs in found.items()]


def best(settings: Sequence[Tried]) -> dict[str, Tried]:
    """Setting with the largest AUC of each mode."""
    return {mode: max((s for s in settings if s.mode == mode), key=lambda s: s.auc) for mode in _modes(settings)}


def _modes(settings: Sequence[Tried]) -> list[str]:
    return list(dict.fromkeys(setting.mode for setting in settings))


def at_the_edge(settings: Sequence[Tried], chosen: Tried) -> list[str]:
    """Names of the options whose chosen value is the first or last of those tried."""
    mine = [setting for setting in settings if setting.mode == chosen.mode]
    axes = {"optim.lr": [float(s.rate) for s in mine], OWN.get(chosen.mode, ""): [float(s.own or 0) for s in mine]}
    here = {"optim.lr": float(chosen.rate), OWN.get(chosen.mode, ""): float(chosen.own or 0)}
    return [name for name, values in axes.items() if name and here[name] in (min(values), max(values))]


def sync_rate(cells: Iterable[Done]) -> str:
    """Learning rate of sync with the best mean AUC."""
    found: defaultdict[str, list[float]] = defaultdict(list)
    for cell in cells:
        found[cell.options["optim.lr"]].append(cell.result["auc"])
    return max(found, key=lambda rate: statistics.fmean(found[rate]))


def sweep(chosen: Mapping[str, Tried], rate: str, seeds: int) -> dict[str, object]:
    """Sweep of the reported cells: sync and gba at sync's rate, untuned, and each baseline at its best setting."""
    lines = [
        ["+tracking.tags.derived=sync", "mode=sync", f"optim.lr={rate}"],
        ["+tracking.tags.derived=gba", "mode=gba", f"optim.lr={rate}"],
        ["+tracking.tags.derived=gba-prefetch-0", "mode=gba", "mode.prefetch=none", f"optim.lr={rate}"],
        *([f"+tracking.tags.derived={mode}", *setting.line] for mode, setting in chosen.items()),
    ]
    common = ["experiment=gba_claims", "faults=eighth_slow", "train.days=3"]
    derived = {"jobs": 2, "common": common, "grid": {"line": lines, "seed": list(range(1, 1 + seeds))}}
    return {"study": "gba_claims", "parts": {"derived": derived}}


def fragment(settings: Sequence[Tried]) -> str:
    """Markdown table of the settings tried, with the chosen ones."""
    chosen = best(settings)
    rates = sorted({s.rate for s in settings}, key=float)
    lines = [f"| mode | {' | '.join(f'lr {rate}' for rate in rates)} |", f"| --- |{' ---: |' * len(rates)}"]
    for mode, own in dict.fromkeys((s.mode, s.own) for s in settings):
        aucs = {s.rate: s for s in settings if (s.mode, s.own) == (mode, own)}
        cells = [_cell(aucs.get(rate), chosen[mode]) for rate in rates]
        name = f"{mode}, {OWN[mode].removeprefix('mode.')} {own}" if mode in OWN else mode
        lines.append(f"| {name} | {' | '.join(cells)} |")
    edges = {mode: at_the_edge(settings, setting) for mode, setting in chosen.items()}
    said = [f"- {mode}: the best {', '.join(at)} is at the edge of its grid." for mode, at in edges.items() if at]
    return "\n".join([*lines, "", "- AUC; **chosen**: the best of a mode.", *said]) + "\n"


def _cell(setting: Tried | None, chosen: Tried) -> str:
    if setting is None:
        return "-"
    return f"**{setting.auc:.5f}**" if setting == chosen else f"{setting.auc:.5f}"


def settings() -> list[Tried]:
    """Settings of both grids."""
    return [each for name in GRIDS for each in tried(done(name, SWEEP))]


def main() -> None:
    """Write the sweep of the chosen settings."""
    CHOSEN.parent.mkdir(parents=True, exist_ok=True)
    chosen = sweep(best(settings()), sync_rate(done("rate")), SEEDS[size()])
    CHOSEN.write_text(yaml.safe_dump(chosen, sort_keys=False))


if __name__ == "__main__":
    main()
