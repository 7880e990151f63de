"""The view that the MLflow UI offers for an experiment."""

from __future__ import annotations

import base64
import json
import zlib

from gbactl.tracking.final_metrics import logged_name
from gbactl.tracking.saved_view import VIEW, saved_view, view_path


def test_the_view_has_charts_of_the_main_metrics_by_mode() -> None:
    stored = json.loads(saved_view())
    packed = stored["state"].removeprefix("deflate;")
    state = json.loads(zlib.decompress(base64.b64decode(packed)))
    charts = [chart["metricKey"] for chart in state["compareRunCharts"]]
    assert charts[:5] == [logged_name(n) for n in ("auc", "progressive_auc", "loss", "eps", "staleness_mean")]
    assert state["groupBy"]["groupByKeys"] == [{"mode": "param", "groupByData": "mode"}]
    assert {chart["metricSectionId"] for chart in state["compareRunCharts"]} == {state["compareRunSections"][0]["uuid"]}
    assert view_path("7").startswith("/#/experiments/7/runs?") and view_path("7").endswith(f"={VIEW}")
