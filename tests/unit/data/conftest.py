"""Small source files in every format, and a cache folder of the test's own."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gbactl.data.cache import prepare
from gbactl.data.dataset import Dataset, open_dataset


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def load(cache: Path) -> Callable[..., Dataset]:
    """load(name=..., **options) prepares and opens."""

    def run(**options: Any) -> Dataset:
        return open_dataset(prepare({"cache": str(cache), **options}))

    return run


@pytest.fixture
def caches(cache: Path) -> Callable[[], list[str]]:
    """Names of what is in the cache folder, locks apart."""
    return lambda: sorted(p.name for p in cache.glob("*") if p.suffix != ".lock") if cache.exists() else []


@pytest.fixture
def criteo_lines() -> Callable[[int], list[str]]:
    """criteo_lines(n): n lines with empty, negative and large values."""

    def make(count: int, seed: int = 0) -> list[str]:
        rng = random.Random(seed)

        def number() -> str:
            return rng.choice(["", "0", str(rng.randint(-3, 9)), str(rng.randint(0, 10**9))])

        def identity() -> str:
            return rng.choice(["", f"{rng.getrandbits(32):08x}", f"{rng.randint(0, 3):08x}"])

        return [
            "\t".join([str(rng.randint(0, 1)), *(number() for _ in range(13)), *(identity() for _ in range(26))])
            for _ in range(count)
        ]

    return make
