"""Metrics against counting by hand."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gbactl import quality_metrics as metrics

PAIRS = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 20)), min_size=2, max_size=40)


def counted(labels: np.ndarray, p: np.ndarray) -> float:
    pairs = [(a > b) + 0.5 * (a == b) for a in p[labels > 0] for b in p[labels == 0]]
    return float(np.mean(pairs))


@settings(deadline=None)  # the first call imports scikit-learn
@given(PAIRS)
def test_both_aucs_equal_counting_pairs(rows: list[tuple[int, int]]) -> None:
    labels = np.array([row[0] for row in rows], np.uint8)
    p = np.array([row[1] / 20 for row in rows], np.float32)
    won, pairs = metrics.ranked_pairs(labels, p)
    if labels.min() == labels.max():
        assert math.isnan(metrics.auc(labels, p))
        assert pairs == 0
        return
    wanted = counted(labels, p)
    assert metrics.auc(labels, p) == pytest.approx(wanted, abs=1e-12)
    assert won / pairs == pytest.approx(wanted, abs=1e-12)


IMPORTING = """
import sys, threading, time
import numpy as np
from gbactl.quality_metrics import auc
threading.Thread(target=__import__, args=["mlflow"]).start()
while "polars" not in sys.modules:
    time.sleep(0.01)
assert auc(np.array([0, 1], np.uint8), np.array([0.2, 0.7], np.float32)) == 1.0
"""


@pytest.mark.slow
def test_auc_while_another_thread_imports_what_scikit_learn_looks_at(tmp_path: Path) -> None:
    (tmp_path / "mlflow.py").write_text("import polars\n")
    (tmp_path / "polars.py").write_text("import time\ntime.sleep(6)\nDataFrame = Series = dict\n")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    subprocess.run([sys.executable, "-c", IMPORTING], env=environment, check=True, timeout=60)


USERS = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 20), st.integers(-3, 3)), min_size=1, max_size=60)


@settings(deadline=None)
@given(USERS)
def test_gauc_is_the_weighted_mean_of_each_users_auc(rows: list[tuple[int, int, int]]) -> None:
    labels, users = np.array([row[0] for row in rows], np.uint8), np.array([row[2] for row in rows], np.int32)
    p = np.array([row[1] / 20 for row in rows], np.float32)
    own = [users == user for user in set(users.tolist())]
    parts = [(counted(labels[at], p[at]), int(at.sum())) for at in own if 0 < labels[at].sum() < at.sum()]
    found = metrics.gauc(labels, p, users)
    assert metrics.evaluate(labels, p, users)["gauc"] == found or not parts
    if not parts:
        assert math.isnan(found)
        return
    assert found == pytest.approx(sum(auc * n for auc, n in parts) / sum(n for _, n in parts), abs=1e-12)


def test_gauc_of_one_user_is_the_auc_and_of_none_unknown() -> None:
    labels, p = np.array([1, 0, 0, 0], np.uint8), np.array([0.5, 0.25, 0.25, 0.5], np.float32)
    assert metrics.gauc(labels, p, np.zeros(4, np.int32)) == pytest.approx(metrics.auc(labels, p))
    assert "gauc" not in metrics.evaluate(labels, p)


def test_pairs_add_up_over_batches_and_none_is_there_without_both_classes() -> None:
    labels, scores = np.array([1, 0, 1, 0, 0], np.uint8), np.array([2.0, -1.0, 0.5, 0.5, 3.0], np.float32)
    assert metrics.ranked_pairs(labels, scores) == (1 + 1 + 1 + 0.5, 6)
    assert metrics.ranked_pairs(labels[:1], scores[:1]) == metrics.ranked_pairs(1 - labels[:1], scores[:1]) == (0.0, 0)


def test_by_hand() -> None:
    labels, p = np.array([1, 0, 0, 0], np.uint8), np.array([0.5, 0.25, 0.25, 0.5], np.float64)
    loss = -(math.log(0.5) + 2 * math.log(0.75) + math.log(0.5)) / 4
    entropy = -(0.25 * math.log(0.25) + 0.75 * math.log(0.75))
    got = metrics.evaluate(labels, p)
    assert got["logloss"] == pytest.approx(loss)
    assert got["ne"] == pytest.approx(loss / entropy)
    assert got["calibration"] == pytest.approx(1.5)
    assert got["auc"] == pytest.approx(2.5 / 3)


def test_a_certain_and_wrong_prediction_costs_a_finite_amount() -> None:
    got = metrics.logloss(np.array([0, 1], np.uint8), np.array([1.0, 0.0], np.float32))
    assert got == pytest.approx(-math.log(np.finfo(np.float32).eps), rel=1e-6)


def test_undefined_is_nan() -> None:
    labels, p = np.zeros(3, np.uint8), np.full(3, 0.5, np.float32)
    got = metrics.evaluate(labels, p)
    assert math.isnan(got["auc"])
    assert math.isnan(got["ne"])
    assert math.isnan(got["calibration"])
    assert got["logloss"] == pytest.approx(math.log(2))


def test_shapes_are_checked() -> None:
    with pytest.raises(ValueError, match="one length"):
        metrics.logloss(np.zeros(2, np.uint8), np.zeros(3, np.float32))
    with pytest.raises(ValueError, match="not empty"):
        metrics.auc(np.zeros(0, np.uint8), np.zeros(0, np.float32))
