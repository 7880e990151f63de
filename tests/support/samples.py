"""Small files in each format that is read, made from a seed."""

from __future__ import annotations

import gzip
import random
from pathlib import Path
from typing import Any

import numpy as np


def write_samples(folder: Path, rows: int = 600) -> None:
    """Write a small file in each format.

    clicks.csv with schema.yaml; train.txt, day_0.gz, day_1.gz (Criteo); train.csv.gz (Avazu); a/b/c.libfm; ratings.dat
    (MovieLens); the folders alimama and mlperf."""
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
    write_alimama(folder / "alimama", alimama(0, rows, rows))
    for day in (0, 1):
        write_mlperf_day(folder / "mlperf", day, rows)


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


ALIMAMA = {
    "raw_sample": "user,time_stamp,adgroup_id,pid,nonclk,clk",
    "ad_feature": "adgroup_id,cate_id,campaign_id,customer,brand,price",
    "user_profile": "userid,cms_segid,cms_group_id,final_gender_code,age_level,pvalue_level,shopping_level,occupation,"
    "new_user_class_level ",  # as published, with the blank
    "behavior_log": "user,time_stamp,btag,cate,brand",
}
MIDNIGHT = 1_494_000_000  # of 2017-05-06 in China
PIDS, TAGS = ["430548_1007", "430539_1007"], ["pv", "cart", "fav", "buy"]
Tables = dict[str, list[list[Any]]]


def alimama(seed: int, impressions: int, behaviours: int, users: int = 12) -> Tables:
    """Small tables of the published shape.

    A third of the users has no profile, the last ad no feature, the last user no behaviour; times have ties."""
    rng = random.Random(seed)
    ads, seconds = list(range(1, 16)), [MIDNIGHT + 1000 * i for i in range(-40, 260)]
    clicks = [rng.random() < 0.3 for _ in range(impressions)]
    return {
        "raw_sample": [
            [rng.randint(1, users), rng.choice(seconds[40:]), rng.choice(ads), rng.choice(PIDS), int(not c), int(c)]
            for c in clicks
        ],
        "ad_feature": [
            [ad, rng.randint(1, 9), ad // 2, ad // 3, rng.choice(["NULL", 3, 461_000]), rng.choice([170.0, 0.01, 88])]
            for ad in rng.sample(ads[:-1], len(ads) - 1)
        ],
        "user_profile": [
            [user, rng.randint(0, 96), 5, 2, rng.randint(0, 6), rng.choice(["", 1, 2]), 3, 0, rng.choice(["", 1, 4])]
            for user in range(1, users + 1) if user % 3
        ],
        "behavior_log": [
            [user, rng.choice(seconds), rng.choice(TAGS), rng.randint(1, 12), rng.choice(["", 0, 7, 80])]
            for user in (rng.randint(1, users - 1) for _ in range(behaviours))
        ],
    }  # fmt: skip


def write_alimama(folder: Path, content: Tables) -> str:
    """Write the tables as files; return the folder."""
    folder.mkdir(exist_ok=True)
    for name, rows in content.items():
        lines = [ALIMAMA[name], *(",".join(map(str, row)) for row in rows)]
        (folder / f"{name}.csv").write_text("\n".join(lines) + "\n")
    return str(folder)


HOT = [3, 2, 1, 2, 6, 1, 1, 1, 1, 7, 3, 8, 1, 6, 9, 5, 1, 1, 1, 12, 100, 27, 10, 3, 1, 1]  # MLPerf's
MlperfDay = tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], list[np.ndarray[Any, Any]]]


def write_mlperf_day(folder: Path, day: int, rows: int, largest: int = 500) -> MlperfDay:
    """Write the three files of a day as the published scripts do; the first id of a list is odd after a click."""
    folder.mkdir(exist_ok=True)
    rng = np.random.default_rng(day)
    sparse = [rng.integers(0, largest, (rows, size), np.int32) for size in HOT]
    labels = rng.integers(0, 2, (rows, 1), np.int32)
    for field in (f for f, size in enumerate(HOT) if size > 1):
        sparse[field][:, :1] = sparse[field][:, :1] // 2 * 2 + labels
    dense = np.log(rng.integers(0, 50, (rows, 13)) + 3).astype(np.float32)
    np.save(folder / f"day_{day}_labels.npy", labels)
    np.save(folder / f"day_{day}_dense.npy", dense)
    np.savez(folder / f"day_{day}_sparse_multi_hot.npz", **{str(f): ids for f, ids in enumerate(sparse)})
    return labels, dense, sparse
