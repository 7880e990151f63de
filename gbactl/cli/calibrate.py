"""`gbactl calibrate`: this machine's cost model, for planning on the virtual cluster."""

from __future__ import annotations

from pathlib import Path

import click

from gbactl.cli.overrides import complete_overrides
from gbactl.errors import UsageError


@click.command("calibrate", context_settings={"ignore_unknown_options": True, "help_option_names": ["-h", "--help"]})
@click.argument("overrides", nargs=-1, type=click.UNPROCESSED, shell_complete=complete_overrides)
@click.option(
    "--out", type=click.Path(path_type=Path, dir_okay=False), default=Path("calibrated.yaml"), show_default=True,
    metavar="FILE", help="Where to write the cost model.",
)  # fmt: skip
@click.option("--workers", default="2,4", show_default=True, metavar="N,N", help="Workers of the measured runs.")
@click.option("--seconds", type=click.FloatRange(0.5), default=8.0, show_default=True, help="How long each run lasts.")
@click.option("--repeat", type=click.IntRange(1), default=1, show_default=True, help="Runs of each kind.")
@click.option(
    "--network", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
    help="Measured connections between hosts, a file of gbactl doctor --out.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print the comparison as JSON.")
def command(
    overrides: tuple[str, ...], out: Path, workers: str, seconds: float, repeat: int, network: Path | None,
    as_json: bool,
) -> None:  # fmt: skip
    """Measure this machine and write the cost model with which a virtual cluster behaves like it.

    \b
    gbactl calibrate                            writes calibrated.yaml (3 minutes)
    gbactl calibrate model.dim=32 --out big.yaml
    gbactl train cluster=virtual cost=big.yaml cluster.workers=16 model.dim=32
    gbactl calibrate --network network.yaml     of gbactl doctor --out

    \b
    It first measures one worker and one server, each alone, then short local
    runs of sync, async and gba. OVERRIDES are those of `gbactl train`: they
    choose the model, the data and the local batch, and the cost model holds
    for these only. A table compares the measured runs with the cost model's
    predictions for them.

    Nothing else should run on this machine meanwhile.
    Exit code 1 if the measurements give no usable cost model.
    """
    try:
        counts = tuple(int(count) for count in workers.split(","))
    except ValueError:
        raise UsageError(f"--workers {workers} is no list of numbers; type --workers 2,4.") from None
    from gbactl.calibration.calibrate_command import calibrate

    calibrate(out, overrides, counts, seconds, repeat, network, as_json)
