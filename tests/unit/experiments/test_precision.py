"""The study of precision: which cells it trains, what its table says."""

from __future__ import annotations

from pathlib import Path

import compare_precision
import pytest
import study
import study_results

EXPERIMENTS = Path(__file__).resolve().parents[3] / "experiments"
FOLDER = EXPERIMENTS / "precision"


@pytest.mark.parametrize("size", ["default", "full"])
def test_every_training_is_there_in_both(size: str) -> None:
    from gbactl.launch.hydra_config import compose

    for part in study.read_study(FOLDER / "sweep.yaml", size):
        cells = [study_results.Done(study_results.options(c.overrides), {}, Path()) for c in part.cells]
        pairs: dict[str, set[tuple[str, str]]] = {}
        for cell in cells:
            pairs.setdefault(compare_precision.setting(cell), set()).add((cell.options["mode"], cell.seed))
        bf16 = {"precision=bf16"}
        wanted = bf16 if part.name == "frappe" else {"transport.wire_dtype=fp16", "transport.wire_dtype=bf16", *bf16}
        assert pairs.keys() == {"fp32", *wanted} and all(each == pairs["fp32"] for each in pairs.values())
        assert len(pairs["fp32"]) >= 10
        cfg = compose([*part.cells[0].overrides, "data=synthetic"])
        assert cfg.tracking.experiment == "precision" and cfg.cluster.name == "virtual"


def test_bf16_is_compared_with_fp32_of_the_same_seed() -> None:
    made, found = study_results.Done, []
    for mode, off in (("sync", -0.0001), ("gba", -0.001)):
        for seed, auc in (("1", 0.8), ("2", 0.7)):
            options = {"mode": mode, "seed": seed}
            found += [
                made({**options, "precision": "bf16"}, {"auc": auc + off, "logloss": 0.5}, Path()),
                made({**options, "precision": "fp32"}, {"auc": auc, "logloss": 0.4}, Path()),
            ]
    sync, gba = (" | ".join(row) for row in compare_precision.rows("synthetic", found))
    assert sync == (
        "synthetic | sync | `precision=bf16` | 2 | 0.75000 | **-0.00010 +-0.00000** | 0.40000 | +0.10000 +-0.00000"
    )
    assert "| gba | `precision=bf16` | 2 | 0.75000 | -0.00100 +-0.00000 |" in gba


def test_each_setting_has_its_row() -> None:
    made, found = study_results.Done, []
    for kind, off in (("fp32", 0.0), ("fp16", 0.001), ("bf16", -0.002)):
        for seed, auc in (("1", 0.8), ("2", 0.7)):
            options = {"mode": "gba", "seed": seed, "transport.wire_dtype": kind}
            found.append(made(options, {"auc": auc + off, "logloss": 0.5}, Path()))
    found += [made({"mode": "gba", "seed": "1", "precision": "bf16"}, {"auc": 0.8, "logloss": 0.5}, Path())]
    rows = compare_precision.rows("synthetic", found)
    assert [row[2] for row in rows] == [
        "`transport.wire_dtype=fp16`",
        "`transport.wire_dtype=bf16`",
        "`precision=bf16`",
    ]
    assert rows[0][3:6] == ["2", "0.75000", "+0.00100 +-0.00000"]
    assert rows[1][3:6] == ["2", "0.75000", "-0.00200 +-0.00000"]


def test_a_part_that_is_not_asked_for_stays_as_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    text = (FOLDER / "results.md").read_text()
    for part in study.read_study(FOLDER / "sweep.yaml", "default"):
        rows, origin = compare_precision.kept(text, part.name)
        kinds = 3 if part.name == "synthetic" else 1
        assert [row[1] for row in rows] == ["sync"] * kinds + ["gba"] * kinds
        assert all(f"| {' | '.join(row)} |" in text.splitlines() for row in rows)
        assert f"{len(part.cells)} runs" in origin and "code version" in origin
    monkeypatch.delenv("SIZE", raising=False)
    monkeypatch.setattr(study_results.Results, "place", tmp_path)
    (tmp_path / "results.md").write_text(text)
    compare_precision.main()
    table = [line for line in (tmp_path / "results.md").read_text().splitlines() if line.startswith("| ")]
    assert table == [line for line in text.splitlines() if line.startswith("| ")] and len(table) == 2 + 8
