"""`gbactl data prepare | describe | infer-schema`: the data sets, apart from any training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gbactl.cli.overrides import complete_overrides
from gbactl.errors import UsageError

if TYPE_CHECKING:
    from gbactl.data.dataset import Dataset
    from gbactl.data.remote_files import SourceFile


@click.group("data")
def command() -> None:
    """Prepare and describe data sets (overrides as for `train`: data=criteo data.path=FILE)."""


@command.command("prepare")
@click.argument("overrides", nargs=-1, shell_complete=complete_overrides)
def prepare(overrides: tuple[str, ...]) -> None:
    """Read or generate the data once, and store them in the cache."""
    from gbactl.data.data_summary import show

    show(_prepared(overrides), fields=False)


@command.command("describe")
@click.argument("overrides", nargs=-1, shell_complete=complete_overrides)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def describe(overrides: tuple[str, ...], as_json: bool) -> None:
    """Print rows, days, click rate (CTR), and fields with cardinalities and skew."""
    from gbactl.data.data_summary import show, summarise

    dataset = _prepared(overrides)
    if as_json:
        click.echo(json.dumps(summarise(dataset), indent=1))
    else:
        show(dataset, fields=True)


@command.command("infer-schema")
@click.argument("file")
@click.option("--label", metavar="COLUMN", help="The column that says whether it was a click.")
@click.option("--out", metavar="FILE", help="Where the schema is written; default: schema.yaml beside FILE.")
@click.option("--force", is_flag=True, help="Overwrite a schema that is there.")
def infer_schema(file: str, label: str | None, out: str | None, force: bool) -> None:
    """Write a first schema of a table (CSV, TSV, Parquet) for data=table, and say what was guessed and why."""
    from gbactl.data.data_summary import show_guesses
    from gbactl.data.schema_inference import infer
    from gbactl.data.text_files import find

    found = find(file, ["*.parquet", "*.csv*", "*.tsv*"], "FILE")
    place = _schema_place(found[0], out)
    if place.exists() and not force:
        raise UsageError(f"{place} exists; type --force to overwrite it, or --out FILE.")
    inferred = infer(found[0], label)
    try:
        place.write_text(inferred.text(), "utf-8")
    except OSError as error:
        raise UsageError(f"{place} cannot be written ({error.strerror}); type --out FILE.") from None
    show_guesses(inferred)
    click.echo(f"\nGuessed from {inferred.looked_at} of {found[0]}, and written to {place}.")
    click.echo("Look at that file and change what is wrong, then type:")
    click.echo("\n".join(f"  {each}" for each in inferred.commands(file, str(place))))


def _schema_place(file: SourceFile, out: str | None) -> Path:
    """Return where the schema is written: beside a local file, in the working directory for a remote one."""
    if out is not None:
        return Path(out).expanduser()
    return file.with_name("schema.yaml") if isinstance(file, Path) else Path("schema.yaml")


def _prepared(overrides: tuple[str, ...]) -> Dataset:
    """Build or reuse the cache of the data that the overrides select; shows its progress on standard error."""
    from gbactl.data.dataset import open_dataset
    from gbactl.data.source_cache import prepare
    from gbactl.launch.hydra_config import compose
    from gbactl.launch.progress import ProgressDisplay

    display = ProgressDisplay()
    try:
        return open_dataset(prepare(compose(list(overrides)).data, display.step))
    finally:
        display.clear()
