"""Small files in each format that is read, made from a seed."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np


def write_samples(folder: Path, rows: int = 600) -> None:
    """Write a small file in each format.

    clicks.csv with schema.yaml; train.txt, day_0.gz, day_1.gz (Criteo); train.csv.gz (Avazu); a/b/c.libfm; ratings.dat
    (MovieLens)."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    (folder / "clicks.csv").write_text(table(rng, rows))
    (folder / "schema.yaml").write_text(SCHEMA)
    (folder / "train.txt").write_text(criteo(rng, rows))
    for day in (0, 1):
        (folder / f"day_{day}.gz").write_bytes(gzip.compress(criteo(rng, rows).encode()))
    (folder / "train.csv.gz").write_bytes(gzip.compress(avazu(rng, rows).encode()))
    for name in "abc":
        (folder / f"{name}.libfm").write_text(libfm(rng, rows))
    (folder / "ratings.dat").write_text(movielens(rng, rows))


def criteo(rng: np.random.Generator, rows: int) -> str:
    """Label, 13 integers (some empty or negative), 26 hexadecimal strings (some empty)."""
    lines = []
    for _ in range(rows):
        numbers = ["" if rng.random() < 0.2 else str(rng.integers(-2, 1000)) for _ in range(13)]
        words = ["" if rng.random() < 0.1 else f"{rng.integers(0, 50):08x}" for _ in range(26)]
        lines.append("\t".join([str(rng.integers(0, 2)), *numbers, *words]))
    return "\n".join(lines) + "\n"


AVAZU = (
    "id,click,hour,C1,banner_pos,site_id,site_domain,site_category,app_id,app_domain,app_category,device_id,"
    "device_ip,device_model,device_type,device_conn_type,C14,C15,C16,C17,C18,C19,C20,C21"
)


def avazu(rng: np.random.Generator, rows: int) -> str:
    """Kaggle's header; two days."""
    lines = [AVAZU]
    for i in range(rows):
        hour = f"1410{21 + (i >= rows // 2)}{i % 24:02d}"
        words = [f"{rng.integers(0, 30):08x}" for _ in range(21)]
        lines.append(",".join([str(i), str(rng.integers(0, 2)), hour, *words]))
    return "\n".join(lines) + "\n"


def libfm(rng: np.random.Generator, rows: int) -> str:
    """Label and three one-hot fields."""
    lines = []
    for _ in range(rows):
        ids = [int(rng.integers(20 * f, 20 * (f + 1))) for f in range(3)]
        lines.append(" ".join([str(rng.choice([-1, 1])), *(f"{i}:1" for i in ids)]))
    return "\n".join(lines) + "\n"


def movielens(rng: np.random.Generator, rows: int) -> str:
    """UserID::MovieID::Rating::Timestamp."""
    return "".join(
        f"{rng.integers(1, 50)}::{rng.integers(1, 80)}::{rng.integers(1, 6)}::{978300000 + 3600 * i}\n"
        for i in range(rows)
    )


SCHEMA = "columns: {clicked: label, age: {kind: numeric, transform: standardize}, country: categorical}\n"


def table(rng: np.random.Generator, rows: int) -> str:
    """Header, label, a number and a text, some of them missing."""
    lines = ["clicked,age,country"]
    for _ in range(rows):
        age = "" if rng.random() < 0.1 else str(rng.integers(18, 90))
        lines.append(f"{rng.integers(0, 2)},{age},{rng.choice(['DE', 'FR', ''])}")
    return "\n".join(lines) + "\n"
