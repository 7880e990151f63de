"""`gbactl doctor`: what this machine has, and what to do about what it has not."""

from __future__ import annotations

import click


@click.command("doctor")
@click.option("--json", "wants_json", is_flag=True, help="Print JSON instead of a table.")
def command(wants_json: bool) -> None:
    """Check this machine; exit code 1 when something essential is missing."""
    from gbactl import doctor

    checks = doctor.examine()
    if wants_json:
        click.echo(doctor.as_json(checks))
    else:
        doctor.print_table(checks)
    raise click.exceptions.Exit(doctor.exit_code(checks))
