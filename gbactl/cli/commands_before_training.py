"""Commands before a run: `gbactl data` and `doctor`, `calibrate` and `advise` for a choice of the mode."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gbactl.cli.config_and_completion import (
    WITH_OVERRIDES,
    FiniteRange,
    count_option,
    default_option,
    file_option,
    json_option,
    margin_option,
    overrides_argument,
)
from gbactl.errors import UsageError

if TYPE_CHECKING:
    from gbactl.data.dataset import Dataset
    from gbactl.data.remote_files import SourceFile
    from gbactl.doctor import Check
    from gbactl.engine.host_agents import HostFindings


@click.group("data")
def data() -> None:
    """Prepare and describe data sets. OVERRIDES are those of gbactl train, such as data=criteo data.path=FILE."""


@data.command("prepare", context_settings=WITH_OVERRIDES)
@overrides_argument
def prepare(overrides: tuple[str, ...]) -> None:
    """Read or generate the data that OVERRIDES name once, and store them in the data cache."""
    from gbactl.data.data_summary import show

    show(_prepared(overrides), fields=False)


@data.command("describe", context_settings=WITH_OVERRIDES)
@overrides_argument
@json_option(help="Print JSON.")
def describe(overrides: tuple[str, ...], as_json: bool) -> None:
    """Print the samples, days and click rate (CTR) of a data set, and its fields with their cardinality and skew."""
    from gbactl.data.data_summary import show, summarise

    dataset = _prepared(overrides)
    if as_json:
        click.echo(json.dumps(summarise(dataset), indent=1))
    else:
        show(dataset, fields=True)


@data.command("infer-schema")
@click.argument("files", metavar="FILE", nargs=-1, required=True)
@click.option("--label", metavar="COLUMN[=VALUE]", help="The column that says whether a sample was clicked.")
@click.option("--out", metavar="FILE", help="File for the schema; default: schema.yaml beside FILE.")
@click.option("--force", is_flag=True, help="Overwrite an existing schema file.")
def infer_schema(files: tuple[str, ...], label: str | None, out: str | None, force: bool) -> None:
    """Write a first schema of a table (CSV, TSV, Parquet) for data=table; print what is guessed and why."""
    from gbactl.data.data_summary import show_guesses
    from gbactl.data.schema_inference import infer
    from gbactl.data.text_files import find

    if len(files) > 1:
        raise UsageError("Several files were typed; name their folder, or put a glob in quotes, such as 'parts/*.csv'.")
    [file] = files
    found = find(file, ["*.parquet", "*.csv*", "*.tsv*"], "FILE")
    place = _schema_place(found[0], out)
    if place.exists() and not force:
        raise UsageError(f"{place} exists; type --force to overwrite it, or --out FILE.")
    inferred = infer(found[0], label, len(found))
    try:
        place.write_text(inferred.text(), "utf-8")
    except OSError as error:
        raise UsageError(f"{place} cannot be written ({error.strerror}); type --out FILE.") from None
    show_guesses(inferred)
    click.echo(f"\nGuessed from {inferred.looked_at} of {found[0]}, and written to {place}.")
    for note in inferred.notes:
        click.echo(note)
    click.echo("Look at that file and change what is wrong, then type:")
    click.echo("\n".join(f"  {each}" for each in inferred.commands(file, str(place))))


def _schema_place(file: SourceFile, out: str | None) -> Path:
    """Return where the schema is written: beside a local file, in the working directory for a remote one."""
    if out is not None:
        return Path(out).expanduser()
    return file.with_name("schema.yaml") if isinstance(file, Path) else Path("schema.yaml")


def _prepared(overrides: tuple[str, ...]) -> Dataset:
    """Build or reuse the cache of the data that the overrides select; shows its progress on standard error."""
    from gbactl.launch.hydra_config import compose
    from gbactl.launch.progress import ProgressDisplay, prepared

    return prepared(compose(list(overrides)).data, ProgressDisplay())


# any number of workers divides the global batch: the mode is not what is checked
BATCHES, CHOICES = ("mode=async", "mode.local_batch=1"), ("mode=", "mode.", "train.", "experiment=", "resume=")


@click.command("doctor", context_settings=WITH_OVERRIDES)
@overrides_argument
@json_option(help="Print JSON instead of a table.")
@file_option(
    "--out", help="Measure the connections between the hosts, and write them to FILE for gbactl calibrate --network."
)
def doctor(overrides: tuple[str, ...], as_json: bool, out: Path | None) -> None:
    """Check whether this machine, or each host of a cluster, has what a run needs.

    OVERRIDES are those of gbactl train. The exit code is 1 if something that a run needs is missing.

    \b
    gbactl doctor
    gbactl doctor cluster=slurm                      in an allocation of Slurm
    gbactl doctor cluster=hosts cluster.hosts='[a:4,b:4]' --out network.yaml
    """
    from gbactl import doctor
    from gbactl.engine import host_agents

    checks, found = _examine(overrides, measure=out is not None)
    if as_json:
        click.echo(doctor.as_json(checks, None if found is None else found.plain()))
    else:
        doctor.print_table(checks)
        if found is not None and found.pairs:
            host_agents.print_lines(found)
    code = doctor.exit_code(checks)
    if out is not None and not code:
        _write_network(out, found)
    raise click.exceptions.Exit(code)


def _write_network(out: Path, found: HostFindings | None) -> None:
    """Write the measured connections between hosts. Raises UsageError, also if no hosts were examined."""
    from gbactl.engine.host_agents import text

    if found is None:
        raise UsageError("--out measures hosts; type for instance cluster=hosts cluster.hosts='[a:4,b:4]' beside it.")
    try:
        out.write_text(text(found))
    except OSError as error:
        raise UsageError(f"{out} cannot be written ({error.strerror}); type another --out.") from error


def _examine(overrides: tuple[str, ...], measure: bool) -> tuple[list[Check], HostFindings | None]:
    """Check this machine, or the hosts of the cluster that the overrides choose."""
    from gbactl import doctor
    from gbactl.engine.hosts import HostsEngine
    from gbactl.errors import ClusterError, ConfigError, MissingDependencyError

    if not overrides:
        return doctor.examine(), None
    from gbactl.launch.hydra_config import compose

    own = () if any(override.startswith(CHOICES) for override in overrides) else BATCHES
    try:
        cfg = compose([*own, *overrides])
        if isinstance(cfg.engine, HostsEngine):
            return doctor.examine_hosts(cfg, cfg.engine, measure)
    except (ConfigError, ClusterError, MissingDependencyError) as error:
        return [doctor.failure("cluster", str(error))], None
    return doctor.examine(), None


@click.command("calibrate", context_settings=WITH_OVERRIDES)
@overrides_argument
@file_option("--out", default=Path("calibrated.yaml"), show_default=True, help="File for the cost model.")
@default_option("--workers", default="2,4", metavar="N,N", help="Numbers of workers of the measured runs.")
@default_option("--seconds", type=FiniteRange(0.5), default=8.0, help="Seconds that each measured run lasts.")
@default_option(
    "--repeat",
    type=click.IntRange(1),
    default=1,
    help="Number of measured runs of each mode with each number of workers.",
)
@file_option(
    "--network", help="File with the measured connections between hosts, which gbactl doctor --out has written."
)
@json_option(help="Print the comparison of measured and predicted runs as JSON.")
def calibrate(
    overrides: tuple[str, ...], out: Path, workers: str, seconds: float, repeat: int, network: Path | None,
    as_json: bool,
) -> None:  # fmt: skip
    """Measure this machine and write the cost model with which a virtual cluster behaves like it.

    \b
    gbactl calibrate                            writes calibrated.yaml (3 minutes)
    gbactl calibrate model.dim=32 --out big.yaml
    gbactl train cluster=virtual cost=big.yaml cluster.workers=16 model.dim=32
    gbactl calibrate --network network.yaml     a file of gbactl doctor --out

    \b
    gbactl calibrate first measures one worker and one server, each alone,
    then short local runs of sync, async and gba. OVERRIDES are those of
    gbactl train: they choose the model, the data and the local batch, and
    the cost model holds for these alone. The output is a table that compares
    the measured runs with the cost model's predictions for these runs.

    While gbactl calibrate measures, nothing else should run on this machine.
    The exit code is 1 if the measurements give no usable cost model.
    """
    try:
        counts = tuple(int(count) for count in workers.split(","))
    except ValueError:
        raise UsageError(f"--workers {workers} is no list of numbers; type --workers 2,4.") from None
    from gbactl.calibration.calibrate_command import calibrate

    calibrate(out, overrides, counts, seconds, repeat, network, as_json)


@click.command("advise", context_settings=WITH_OVERRIDES)
@overrides_argument
@click.option("--modes", metavar="NAME,...", help="Modes to simulate besides sync [default: all without replicas].")
@default_option("--minutes", type=FiniteRange(0.25), default=3.0, help="Minutes that all simulations may take.")
@count_option("--seeds", help="Number of seeds of each mode [default: 1, and 3 or more for modes that may be named].")
@count_option("--samples", help="Number of samples trained in each mode [default: as many as --minutes allows].")
@margin_option(help="Largest difference in AUC between a mode and sync that counts as no difference [default: .0005].")
@count_option("--jobs", help="Number of simulations that run at the same time [default: the number of cores].")
@default_option("--format", "form", default="table", type=click.Choice(["table", "md", "json"]))
def advise(overrides: tuple[str, ...], **options: Any) -> None:
    """Simulate the modes on your cluster, load and data, and say which one to run in.

    \b
    gbactl calibrate --out mine.yaml            measure this machine first
    gbactl advise cost=mine.yaml cluster.workers=4 faults=one_slow
    gbactl advise cost=mine.yaml data=criteo data.path=day_0.gz model.dim=32
    gbactl advise --modes gba,shadow_ma --format json

    OVERRIDES are those of gbactl train. For each seed, a base is trained in sync, and each mode goes on from this base,
    on a sample of the data, with real gradients in modelled time. The output is a table with each mode's predicted
    samples per second (EPS), its difference in AUC from sync, and the time until it reaches the AUC of sync. Keys
    mode.* in OVERRIDES hold for the mode in mode= alone.

    \b
    gbactl advise names the mode with the highest EPS of those modes whose AUC
    is shown to equal that of sync within the margin, or to be better. A better
    AUC does not count in a mode that takes more steps than sync. Among modes
    within 5 % of the highest EPS, sync is named, else the mode whose AUC is
    shown best.

    The simulations are logged as child runs to the MLflow experiment advise.
    """
    from gbactl.advise.advise_command import AdviseOptions, advise

    advise(overrides, AdviseOptions(**options), click.echo)
