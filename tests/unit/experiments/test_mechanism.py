"""The study of the mechanism: a training with comparisons is the same to the bit, and what is fresh has cosine 1."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import stale_gradients
import virtual_run
import write_mechanism

SMALL = (
    "experiment=quality", "data.rows_per_day=6400", "data.days=2", "data.max_cardinality=50", "train.global_batch=256",
    "cluster.workers=4", "cluster.servers=2", "train.norms_every=1", "seed=1",
)  # fmt: skip


def run(folder: Path, compare: bool, *more: str) -> dict[str, Any]:
    folder.mkdir()
    given = (*SMALL, f"data.cache={folder.parent / 'cache'}", *more)
    return (stale_gradients if compare else virtual_run).run(given, folder)


def test_a_comparison_changes_no_bit_and_finds_what_is_stale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stale_gradients, "EVERY", 7)
    compared = run(tmp_path / "a", True, "mode=async")
    plain = run(tmp_path / "b", False, "mode=async")
    assert compared["checksums"] == plain["checksums"] and compared["auc"] == plain["auc"]
    assert compared["stale"]["n"] == 100 // 7
    assert compared["stale"]["dense"]["cosine"] < 0.9999 and compared["stale"]["rows"]["error"] > 0
    assert len(compared["norms"]["dense"]["quantiles"]) == 51 and compared["norms"]["dense"]["n"] == 100


@pytest.mark.parametrize("mode", [("mode=sync",), ("mode=hop_bw", "mode.backup=0")])
def test_without_staleness_both_gradients_are_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: tuple[str, ...]
) -> None:
    monkeypatch.setattr(stale_gradients, "EVERY", 7)
    compared = run(tmp_path / "a", True, *mode)
    for kind in ("dense", "rows"):
        assert compared["stale"][kind]["cosine"] == pytest.approx(1.0, abs=1e-9)
        assert compared["stale"][kind]["error"] == pytest.approx(0.0, abs=1e-9)


def test_the_table_and_the_figure(tmp_path: Path) -> None:

    def cell(line: str, seed: int, auc: float, cosine: float, scale: float) -> Any:
        numbers = {"cosine": cosine, "error": 1.0 - cosine, "stale": 1.0, "fresh": 1.0}
        norms = {"n": 3, "quantiles": [scale, 2 * scale, 3 * scale]}
        result = {
            "auc": auc, "phases": [{"steps": 10, "staleness_mean": 2.0}], "norms": {"dense": norms, "rows": norms},
            "stale": {"n": 5, "dense": numbers, "rows": numbers},
        }  # fmt: skip
        return write_mechanism.Done({"line": line, "seed": str(seed), "optim.lr": "0.002"}, result, Path())

    cells = [cell("sync", s, 0.8, 1.0, 1.0) for s in (1, 2)] + [cell("async-16", s, 0.79, 0.5, 3.0) for s in (1, 2)]
    found = write_mechanism.by_rate(cells)
    text = write_mechanism.table(found["0.002"])
    numbers = ("2.0", "0.500", "0.500", "0.500", "0.500", "6.0000", "2.00 +-0.00", "2.00 +-0.00", "10")
    assert f"| async-16 | -0.0100 +-0.0000 | {' | '.join(numbers)} |" in text
    write_mechanism.plot(found, tmp_path / "mechanism.png")
    assert (tmp_path / "mechanism.png").stat().st_size > 1000
