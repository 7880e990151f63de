"""What does not fit memory or data: told before anything is started, rows and dense part with the arithmetic."""

from __future__ import annotations

from pathlib import Path

import pytest

from gbactl.engine.preflight import too_few, too_large
from gbactl.errors import ConfigError
from gbactl.launch.compose import compose
from gbactl.launch.run import train


class Table:
    """As much of a data set as the arithmetic needs."""

    class schema:
        rows, numeric, fields = 1 << 24, 0, 1


def test_the_arithmetic_is_told() -> None:
    """2^24 rows of 13 values with two moments and Adam's count: 160 bytes, 2.5 GiB, and 3 % beside them."""
    cfg = compose(["model=wide_deep", "model.dim=12", "optim=adam", "cluster.servers=4"])
    told = too_large(cfg, Table(), 2 << 30)  # type: ignore[arg-type]
    assert told.startswith(
        "The table's 16,777,216 rows of 160 bytes (values and adam's state) need 2.6 GiB, "
        "and 2.0 GiB of memory are free; "
    )
    assert "optim=rowwise_adagrad" in told and "cluster=hosts" in told


@pytest.mark.parametrize("servers", [1, 3])
def test_what_fits_is_not_refused(servers: int) -> None:
    cfg = compose(["model=wide_deep", "model.dim=12", "optim=adam", f"cluster.servers={servers}"])
    dense = (1 + (12 + 1) * 400 + 2 * 401 * 400 + 401) * 4 * (3 + 4 * (4 + 2))  # of four workers in sync, and servers
    needs = 1.03 * (160 << 24) + dense
    assert too_large(cfg, Table(), int(needs)) == ""  # type: ignore[arg-type]
    assert too_large(cfg, Table(), int(needs) - servers) != ""  # type: ignore[arg-type]
    assert too_large(cfg, Table(), 0) == "", "a system that does not tell"  # type: ignore[arg-type]


HUGE_TABLE = r"The table's [\d,]+ rows of [\d,]+ bytes .* GiB of memory are free"
HUGE_MODEL = (
    r"The dense part's [\d,]+ values of 4 bytes, \d+ times \(values, gradients and adam's state of 4 workers and the "
    r"servers\), need at least [\d,.]+ GiB beside the table's [\d.]+, and [\d,.]+ GiB of memory are free; use a "
    r"smaller model\.hidden or fewer cluster\.workers"
)


@pytest.mark.parametrize("cluster", ["local", "virtual"])
@pytest.mark.parametrize(
    ("typed", "told"),
    [
        (["data.max_cardinality=1_000_000_000", "model.dim=512"], HUGE_TABLE),
        (["model.hidden=[9999999,999999]"], HUGE_MODEL),
    ],
)
def test_a_run_that_cannot_fit_starts_nothing(cluster: str, typed: list[str], told: str, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    cfg = compose([
        f"cluster={cluster}", "mode=async", "data=synthetic", "data.days=2", "data.rows_per_day=1000",
        f"data.cache={tmp_path / 'cache'}", "train.global_batch=64", f"run_dir={run_dir}", "tracking.enabled=false",
        *typed,
    ])  # fmt: skip
    with pytest.raises(ConfigError, match=told):
        train(cfg)
    assert not run_dir.exists()


def test_the_dense_part_s_arithmetic_is_told() -> None:
    """12 + 1 inputs for each of a million, and so on: 14 M values, in 27 vectors."""
    cfg = compose(["model=wide_deep", "model.dim=12", "model.hidden=[1000000]", "optim=adam", "mode=sync"])
    told = too_large(cfg, Table(), 3 << 30)  # type: ignore[arg-type]
    assert told.startswith(
        "The dense part's 14,000,002 values of 4 bytes, 27 times (values, gradients and adam's state of 4 workers and "
        "the servers), need at least 1.4 GiB beside the table's 2.6, and 3.0 GiB of memory are free; "
    )


def test_a_batch_larger_than_a_day_is_told_before_the_start(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cfg = compose([
        "cluster=virtual", "mode=gba", "data.days=2", "data.rows_per_day=600", "data.max_cardinality=100",
        "model.dim=4", "model.hidden=[8]", f"data.cache={tmp_path / 'cache'}", "train.global_batch=1024",
        f"run_dir={tmp_path / 'run'}", "tracking.enabled=false",
    ])  # fmt: skip
    assert too_few(cfg, {"day 0": 2048, "day 1": 1024}) == ""
    train(cfg)
    told = capsys.readouterr().err
    assert "Warning: train.global_batch=1024 is more than the 600 samples of day 0: " in told
    assert told.index("Warning: train.global_batch") < told.index("day 0 of 1")
