"""What `gbactl data` does: compose the configuration, prepare its data, print."""

from __future__ import annotations

import json

from gbactl.data.dataset import Dataset, open_dataset
from gbactl.data.describe import show, summarise
from gbactl.data.prepare import prepare
from gbactl.data.progress import shown
from gbactl.launch.compose import compose


def _prepared(overrides: list[str]) -> Dataset:
    with shown() as progress:
        return open_dataset(prepare(compose(overrides).data, progress))


def run_prepare(overrides: list[str]) -> None:
    """Build or reuse the cache of the data that the overrides choose, and print its days."""
    show(_prepared(overrides), fields=False)


def run_describe(overrides: list[str], as_json: bool) -> None:
    """Prepare, then print days and fields."""
    dataset = _prepared(overrides)
    if as_json:
        print(json.dumps(summarise(dataset), indent=1))
        return
    show(dataset, fields=True)
