"""`gbactl doctor`: what this machine has, and what to do about what is missing."""

from __future__ import annotations

import json
from pathlib import Path

import click


@click.command("doctor")
@click.option("--json", "wants_json", is_flag=True, help="Print JSON instead of a table.")
@click.option("--hosts", metavar="A,B,...", help="Check these machines instead, and the connections between them.")
@click.option("--ssh", metavar="COMMAND", help="The command that reaches a host, with its options (as cluster.ssh).")
@click.option("--python", metavar="PATH", help="The interpreter on the hosts (as cluster.python).")
@click.option(
    "--out", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
    help="Write the measured connections, for gbactl calibrate --network.",
)  # fmt: skip
def command(wants_json: bool, hosts: str | None, ssh: str | None, python: str | None, out: Path | None) -> None:
    """Check this machine; exit code 1 when something essential is missing.

    \b
    gbactl doctor
    gbactl doctor --hosts a,b,c --out network.yaml   every host, and every pair
    """
    if hosts is not None:
        raise click.exceptions.Exit(_examine_hosts(hosts, ssh, python, out, wants_json))
    from gbactl import doctor

    checks = doctor.examine()
    if wants_json:
        click.echo(doctor.as_json(checks))
    else:
        doctor.print_table(checks)
    raise click.exceptions.Exit(doctor.exit_code(checks))


def _examine_hosts(hosts: str, ssh: str | None, python: str | None, out: Path | None, wants_json: bool) -> int:
    """Check the hosts and print the findings; returns the exit code."""
    from gbactl.engine import host_agents
    from gbactl.engine.agent_connection import SSH, HostAccess, command
    from gbactl.engine.host_placement import hosts_of

    names = [host.name for host in hosts_of([h if ":" in h else f"{h}:1" for h in hosts.split(",") if h])]
    reach = HostAccess(ssh or SSH, python)
    examined = host_agents.examine(names, lambda host: command(host, reach))
    if wants_json:
        click.echo(json.dumps(examined.plain(), indent=2))
    else:
        host_agents.print_tables(examined)
    if out is not None and not examined.faults:
        out.write_text(host_agents.text(examined))
    return int(bool(examined.faults))
