"""A table that nobody here made goes from file to comparison in three commands: those that the first one prints."""

from __future__ import annotations

import csv
import io
import json
import os
import random
import shlex
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest
from sklearn import datasets

from gbactl.data.dataset import DAYS_BY_ROWS
from tests.support.commands import run as gbactl
from tests.support.processes import Launcher, collective
from tests.support.slow import slow

pytestmark = [pytest.mark.beside, pytest.mark.timeout(300)]
SMALL = ["cluster=virtual", "mode=sync,gba", "seed=1", "model.dim=4", "model.hidden=[8]"]


def write_survey(path: Path) -> None:
    """Semicolons, a byte order mark, quoted cells with separators and line ends, decimals, NA, yes and no; no time."""
    rng = random.Random(0)
    with path.open("w", newline="", encoding="utf-8-sig") as file:
        rows = csv.writer(file, delimiter=";", quoting=csv.QUOTE_NONNUMERIC)
        rows.writerow(["id", "age", "job", "marital status", "balance", "remarks", "y"])
        for i in range(1500):
            job, age = rng.choice(["admin.", "blue-collar", "self; employed"]), rng.choice(["NA", rng.randint(18, 90)])
            balance = f"{rng.gauss(1000, 2000):.2f}"
            wants = rng.random() < (0.7 if job == "admin." else 0.2)
            remark = rng.choice(["", "called\ntwice", 'said "later"'])
            rows.writerow(
                [i, age, job, rng.choice(["single", "married", ""]), balance, remark, "yes" if wants else "no"]
            )


def write_cancer(path: Path) -> None:
    """Breast cancer in Wisconsin, as scikit-learn has it: numbers alone; a header instead of its line of counts."""
    published = Path(datasets.__file__).parent / "data" / "breast_cancer.csv"
    header = ",".join([*datasets.load_breast_cancer().feature_names, "benign"])
    path.write_text("\n".join([header, *published.read_text().splitlines()[1:], ""]))


@pytest.mark.parametrize("write", [write_survey, slow(write_cancer)])
def test_three_commands(tmp_path: Path, write: Callable[[Path], None]) -> None:
    write(tmp_path / "survey.csv")
    kept = {key: value for key, value in os.environ.items() if not key.startswith("MLFLOW")}
    environment = {**kept, "GBACTL_CACHE": str(tmp_path / "cache")}

    def run(*words: str) -> str:
        done = gbactl(*words, cwd=tmp_path, environment=environment, seconds=200)
        assert done.returncode == 0, done.stderr
        return done.stdout

    printed = run("data", "infer-schema", "survey.csv")
    train, report = [line.strip() for line in printed.splitlines() if line.startswith("  gbactl ")]
    words = [word for word in shlex.split(train)[1:] if word.partition("=")[0] not in ("mode", "seed")]
    run(*words, *SMALL)
    table = run(*shlex.split(report)[1:])
    assert "sync" in table and "gba" in table
    assert DAYS_BY_ROWS in table
    assert DAYS_BY_ROWS in run("data", "describe", *words[2:5])


@pytest.mark.parametrize("mode", ["gba", slow("sync")])
def test_weights_of_values_are_trained_with(launcher: Launcher, tmp_path: Path, mode: str) -> None:
    """Each sample has the same two tags, so that the label can be known from their weights alone."""
    rng, lines = random.Random(1), ["y,c,tags,scores"]
    for _ in range(3000):
        click = rng.random() < 0.5
        lines.append(f"{int(click)},{rng.randrange(9)},x|z,{'2|0' if click else '0|2'}")
    (tmp_path / "tags.csv").write_text("\n".join([*lines, ""]))
    (tmp_path / "s.yaml").write_text(
        "columns: {y: label, c: {kind: categorical, buckets: 99}, tags: {kind: multi, buckets: 99, weights: scores}}\n"
    )
    result = launcher.train(
        f"mode={mode}", "data=table", f"data.path={tmp_path / 'tags.csv'}", f"data.schema={tmp_path / 's.yaml'}",
        "data.days=2", "cluster.workers=2", "cluster.servers=2", "model.dim=4", "model.hidden=[8]",
        "train.global_batch=64", "optim.lr=0.05", f"collective={collective()}", small=False,
    )  # fmt: skip
    samples = result["samples"]
    assert samples["read"] == samples["trained"] + samples["decayed"] + samples["lost"] == 1500
    assert result["auc"] > 0.99


@pytest.mark.slow
def test_a_table_in_a_bucket_of_s3(tmp_path: Path) -> None:
    """Read over HTTP from a server on this host that speaks S3."""
    s3fs, moto = pytest.importorskip("s3fs"), pytest.importorskip("moto.server")
    server = moto.ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("AWS_", "MLFLOW"))}
    host, port = server.get_host_and_port()
    endpoint = f"http://{host}:{port}"
    environment = {
        **kept, "HOME": str(tmp_path), "GBACTL_CACHE": str(tmp_path / "cache"), "AWS_ENDPOINT_URL": endpoint,
        "AWS_EC2_METADATA_DISABLED": "true",
    }  # fmt: skip

    def run(*words: str, code: int = 0) -> str:
        done = gbactl(*words, cwd=tmp_path, environment=environment, seconds=100)
        assert done.returncode == code and "Traceback" not in done.stderr, done.stderr
        return done.stderr.splitlines()[-1] if code else done.stdout

    def put(name: str, rows: int) -> None:
        table = pl.DataFrame({"y": [i % 2 for i in range(rows)], "c": [f"c{i % 7}" for i in range(rows)]})
        table.write_parquet(content := io.BytesIO())
        bucket.pipe(f"clicks/tables/{name}", content.getvalue())

    describe = ("data", "describe", "data=table", "data.schema=s3://clicks/schema.yaml")
    try:
        bucket = s3fs.S3FileSystem(endpoint_url=endpoint, key="a", secret="b", skip_instance_cache=True)
        bucket.mkdir("clicks")
        bucket.pipe("clicks/schema.yaml", b"columns: {y: label, c: categorical}")
        put("day_1.parquet", 1200)
        put("day_2.parquet", 800)
        table = "data.path=s3://clicks/tables/day_*.parquet"
        told = run(*describe, table, code=1)
        assert told.startswith("gbactl: s3://clicks/tables/day_*.parquet cannot be read (Unable to locate credentials)")
        environment.update(AWS_ACCESS_KEY_ID="a", AWS_SECRET_ACCESS_KEY="b")
        assert run(*describe, table).startswith("table: 2,000 rows, 0 numeric features, 1 fields")
        put("day_2.parquet", 900)
        assert run(*describe, "data.path=s3://clicks/tables").startswith("table: 2,100 rows")
        small = ("cluster=virtual", "mode=gba", "model.dim=4", "model.hidden=[8]", "train.global_batch=64")
        trained = run("train", *describe[2:], table, *small, "tracking.enabled=false", "--json")
        assert json.loads(trained.splitlines()[-1])["samples"]["trained"] == 1200
        told = run(*describe, "data.path=s3://clicks/tables/day_3.parquet", code=1)
        exists = "s3://clicks/tables/day_3.parquet does not exist; type the URL of a file, a folder or a glob."
        assert told == f"gbactl: {exists}"
    finally:
        server.stop()
