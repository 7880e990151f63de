"""`gbactl doctor`: what this machine or an engine's hosts have, and what to do about what is missing."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from gbactl.cli.overrides import complete_overrides

if TYPE_CHECKING:
    from gbactl.doctor import Check
    from gbactl.engine.host_agents import HostFindings

# any number of workers divides the global batch: the mode is not what is checked
BATCHES, CHOICES = ("mode=async", "mode.local_batch=1"), ("mode", "train.", "experiment=", "resume=")


@click.command("doctor")
@click.argument("overrides", nargs=-1, shell_complete=complete_overrides)
@click.option("--json", "wants_json", is_flag=True, help="Print JSON instead of a table.")
@click.option(
    "--out", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
    help="Measure the connections between the hosts, and write them for gbactl calibrate --network.",
)  # fmt: skip
def command(overrides: tuple[str, ...], wants_json: bool, out: Path | None) -> None:
    """Check this machine, or the hosts of a cluster; exit code 1 when something essential is missing.

    OVERRIDES are those of gbactl train.

    \b
    gbactl doctor
    gbactl doctor cluster=slurm                      in an allocation
    gbactl doctor cluster=hosts cluster.hosts='[a:4,b:4]' --out network.yaml
    """
    from gbactl import doctor
    from gbactl.engine import host_agents

    checks, found = _examine(overrides, measure=out is not None)
    if wants_json:
        click.echo(doctor.as_json(checks, None if found is None else found.plain()))
    else:
        doctor.print_table(checks)
        if found is not None and found.pairs:
            host_agents.print_lines(found)
    code = doctor.exit_code(checks)
    if out is not None and found is not None and not code:
        out.write_text(host_agents.text(found))
    raise click.exceptions.Exit(code)


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
