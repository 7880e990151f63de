"""`gbactl calibrate`: measure a worker, a server and short runs of a local cluster, then fit the cost model.

`gbactl train cluster=virtual cost=FILE` reads the file that it writes. Each measurement takes `seconds`: of a worker
alone, of a server alone, and of each mode with each number of workers. The fit takes about a minute.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import re
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gbactl.calibration.fit import FittedModel, fit, predict
from gbactl.calibration.microbenchmarks import measure_server, measure_worker
from gbactl.calibration.short_local_runs import WARM_UP, Observation, undisturbed
from gbactl.conf_catalogue import as_yaml, conf_dir
from gbactl.config import RunConfig
from gbactl.config.groups import CostConfig
from gbactl.data.cache import prepare
from gbactl.data.dataset import Dataset, open_dataset
from gbactl.engine.host_agents import read
from gbactl.engine.preflight import check_model
from gbactl.engine.stop_signals import stoppable
from gbactl.errors import ClusterError, UsageError
from gbactl.host_limits import usable_cores
from gbactl.launch.hydra_config import compose
from gbactl.launch.resume import overridden_key

KEY = re.compile(r"(\w+):\s*[^#]*?(\s*#.*)?$")


def check_target(path: Path) -> None:
    """Raise UsageError, before anything is measured, unless `path` ends in .yaml or .yml and its folder exists."""
    if path.suffix not in (".yaml", ".yml"):
        raise UsageError(f"--out {path} does not end in .yaml, by which cost=FILE is known; type --out {path}.yaml.")
    if not path.resolve().parent.is_dir():
        raise UsageError(f"There is no folder {path.resolve().parent} to write {path.name} into; type another --out.")


def cost_file_text(cost: CostConfig, header: Sequence[str]) -> str:
    """Format a cost model as conf/cost/laptop.yaml with its comments; `header` says where the values come from."""
    values = dataclasses.asdict(cost)
    lines = [f"# {line}" for line in header]
    for line in (conf_dir() / "cost" / "laptop.yaml").read_text().splitlines():
        found = KEY.match(line)
        if found is not None and found[1] in values:
            setting = f"{found[1]}: {_yaml(values[found[1]])}"
            lines.append(f"{setting:<27} {(found[2] or '').strip()}".rstrip())
    return "\n".join(lines) + "\n"


def _yaml(value: Any) -> str:
    """Format a value as YAML; a measured number has four digits."""
    return f"{value:.4g}" if isinstance(value, float) and value < 1e6 else as_yaml(value)


HEAD = ("mode", "workers", "measured", "predicted", "error")


def error_table(found: FittedModel) -> list[str]:
    """Format the table of measured and predicted rates as aligned lines, with a header."""
    rows = [HEAD]
    for o, p, error in zip(found.observed, found.predicted, found.errors, strict=True):
        rows.append((o.mode, str(o.workers), f"{o.eps:,.0f}", f"{p.eps:,.0f}", f"{100 * error:+.1f} %"))
    widths = [max(len(row[n]) for row in rows) for n in range(len(HEAD))]
    return ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]


MODES = ("sync", "async", "gba")
MESSAGES_US = 500.0  # microseconds that a batch costs at least beside computing
FEWEST_STEPS = 60  # least steps of a run, however short its --seconds
WORST = 0.5  # a relative error above this makes the model worthless
OWN = ("mode", "cluster", "cost", "cluster.workers", "train.global_batch", "mode.local_batch", "run_dir")
OF_ALL_MODES = ("mode.local_batch", "mode.prefetch")  # keys that each of MODES has
START = CostConfig(
    workers_per_host=None, servers_on="workers", allreduce_us=1000.0, allreduce_work_us=500.0,
    allreduce_message_us=200.0, allreduce_float_ns=3.0, server_message_us=25.0, coordinator_message_us=20.0,
)  # fmt: skip


def _without_keys(overrides: Sequence[str], keys: Sequence[str]) -> list[str]:
    """Filter out the overrides that set one of `keys`."""
    return [each for each in overrides if overridden_key(each) not in keys]


@dataclass
class Calibration:
    """One calibration: configurations of its runs, measurements and fit; `say` reports its progress.

    Each run has the user's `overrides`, and all have the same local batch size."""

    overrides: list[str]
    workers: tuple[int, ...]
    repeat: int
    seconds: float
    say: Callable[[str], None] = lambda text: None
    rows: list[str] = field(default_factory=list)

    def config(self, mode: str, workers: int) -> RunConfig:
        """Make the configuration of one run of a calibration. Raises UsageError."""
        for key in map(overridden_key, self.overrides):
            if key.startswith("mode.") and key not in OF_ALL_MODES:
                raise UsageError(f"gbactl calibrate trains {', '.join(MODES)} with their defaults; leave {key} out.")
        given = [
            f"mode={mode}", f"cluster.workers={workers}", f"train.global_batch={self.local_batch * workers}",
            "cluster.threads=1", "tracking.enabled=false", "train.max_eval_samples=4096", "train.epochs=1",
            *self.rows, *_without_keys(self.overrides, OWN),
        ]  # fmt: skip
        return compose(given)

    @functools.cached_property
    def local_batch(self) -> int:
        """Local batch size in the configuration that the user's overrides describe."""
        return compose(self.overrides).local_batch

    def run(self) -> FittedModel:
        """Measure and fit the cost model. Raises GbactlError."""
        dataset = self._dataset()
        start = self._prices(dataset)
        with tempfile.TemporaryDirectory(prefix="gbactl-calibrate-") as folder:
            enough = self._enough_data(dataset, start)
            observed = self._observe(enough, Path(folder))
            self.say("fitting")
            found = self._fit(start, observed, enough, Path(folder))
        _check(found)
        return found

    def _dataset(self) -> Dataset:
        return open_dataset(prepare(self.config("async", self.workers[0]).data))

    def _prices(self, dataset: Dataset) -> CostConfig:
        """Measure the costs of one worker and of one server, each in a single process."""
        cfg = self.config("async", self.workers[0])
        check_model(cfg, dataset)
        self.say(f"a worker by itself, batches around {cfg.local_batch}")
        prices = measure_worker(cfg, dataset, self.seconds)
        self.say("a server's kernels")
        prices |= measure_server(cfg, dataset, self.seconds / 2)
        return replace(START, cores=usable_cores(), **prices)  # type: ignore[arg-type]

    def _enough_data(self, dataset: Dataset, start: CostConfig) -> Dataset:
        """Generate enough data for a timed run with all cores."""
        cfg = self.config("async", self.workers[0])
        if cfg.data["name"] != "synthetic":
            return dataset
        sample = 1e-6 * (start.sample_us + (start.batch_us + MESSAGES_US) / cfg.local_batch)
        rows = int((self.seconds + 2 * WARM_UP) * min(start.cores, max(self.workers)) / sample)
        least = FEWEST_STEPS * max(self.workers) * cfg.local_batch
        self.rows = ["data.days=2", f"data.rows_per_day={max(rows, least)}"]
        self.overrides = _without_keys(self.overrides, ("data.days", "data.rows_per_day"))
        return self._dataset()

    def _observe(self, dataset: Dataset, folder: Path) -> list[Observation]:
        cells = [(mode, count) for _ in range(self.repeat) for count in self.workers for mode in MODES]
        found = []
        for number, (mode, count) in enumerate(cells, 1):
            seen = undisturbed(self.config(mode, count), dataset, folder, self.say, self.seconds)
            self.say(f"run {number} of {len(cells)}: {mode}, {count} workers: {seen.eps:,.0f} samples/s")
            found.append(seen)
        return found

    def _fit(self, start: CostConfig, observed: list[Observation], dataset: Dataset, folder: Path) -> FittedModel:
        configs = {(o.mode, o.workers): self.config(o.mode, o.workers) for o in observed}
        return fit(start, observed, lambda mode, n, cost: predict(configs[mode, n], cost, dataset, folder))


def _check(found: FittedModel) -> None:
    """Raise ClusterError for a fit whose largest error is too large."""
    worst, name = max((abs(error), seen.name) for error, seen in zip(found.errors, found.observed, strict=True))
    if not worst <= WORST:
        raise ClusterError(
            f"The fit is too inexact: the predicted rate of {name} workers is {100 * worst:.0f} % off; try again while "
            "the machine does nothing else, or type a larger --seconds."
        )


def calibrate(
    out: Path, overrides: Sequence[str], workers: tuple[int, ...], seconds: float, repeat: int,
    network: Path | None = None, as_json: bool = False,
) -> None:  # fmt: skip
    """Measure this machine, write its cost model, and show how well it fits.

    `network`: a file with measured links between hosts. `as_json`: print the comparison as JSON.

    Raises GbactlError.
    """
    from rich.console import Console

    check_target(out)
    if len(workers) != len(set(workers)) or min(workers, default=0) < 2:  # one worker has no peer to all-reduce with
        raise UsageError("--workers are different numbers of at least 2; type --workers 2,4.")
    lines = {} if network is None else read(network)
    console = Console(stderr=True, highlight=False)
    made = Calibration(
        list(overrides), workers, repeat, seconds, lambda text: console.print(f"  {text}", soft_wrap=True)
    )
    made.config("sync", workers[0])
    with stoppable():
        found = made.run()
    found = replace(found, cost=replace(found.cost, name=out.stem, **lines))  # type: ignore[arg-type]
    out.write_text(cost_file_text(found.cost, _header(made, found)))
    _show(out, found, as_json)


def _header(made: Calibration, found: FittedModel) -> list[str]:
    from gbactl import __version__

    overrides = " ".join(made.overrides) or "no overrides"
    return [
        f"Measured by gbactl {__version__} calibrate on {time.strftime('%Y-%m-%d')}: {found.cost.cores} cores, local "
        f"batch {made.local_batch}, {overrides}.",
        "Use: gbactl train cluster=virtual cost=THIS_FILE. Samples a second, as fitted:",
        *(f"  {line}" for line in error_table(found)),
    ]


def _show(out: Path, found: FittedModel, as_json: bool) -> None:
    if not as_json:
        print("\n".join([*error_table(found), f"Written: {out}. Use it: gbactl train cluster=virtual cost={out}"]))
        return
    runs = [
        {"mode": o.mode, "workers": o.workers, "measured": o.eps, "predicted": p.eps}
        for o, p in zip(found.observed, found.predicted, strict=True)
    ]
    print("\n".join(error_table(found)), file=sys.stderr)
    print(json.dumps({"file": str(out), "runs": runs}), flush=True)
