"""View that MLflow's UI offers for an experiment: runs grouped by mode, with charts of the main metrics.

The UI stores a view as a tag of the experiment: JSON, compressed by deflate.
"""

from __future__ import annotations

import base64
import json
import zlib
from typing import Any

VIEW = "gbactl_by_mode"  # key of the view
VIEW_TAG = f"mlflow.sharedViewState.{VIEW}"
_NAME = "By mode"
_CHARTS = (
    ("auc", "LINE"), ("train/progressive_auc", "LINE"), ("loss", "LINE"), ("eps", "BAR"), ("staleness", "BAR"),
    ("logloss", "LINE"),
)  # fmt: skip
_COLUMNS = ("auc", "logloss", "eps", "staleness")
_SECTION = "gbactl_main"


def saved_view() -> str:
    """Return the value of the tag VIEW_TAG."""
    charts = [
        {
            "uuid": f"gbactl_{metric}", "type": kind, "runsCountToCompare": 10, "metricSectionId": _SECTION,
            "deleted": False, "isGenerated": False, "displayName": metric, "metricKey": metric, "xAxisKey": "step",
            "yAxisKey": "metric", "useGlobalXaxisKey": True, "useGlobalLineSmoothing": True, "lineSmoothness": 0,
            "scaleType": "linear", "xAxisScaleType": "linear", "range": {}, "yAxisExpressions": [],
            "selectedXAxisMetricKey": "", "selectedMetricKeys": [metric], "ignoreOutliers": False,
        }
        for metric, kind in _CHARTS
    ]  # fmt: skip
    section = {
        "uuid": _SECTION,
        "name": "Main metrics",
        "display": True,
        "isReordered": True,
        "deleted": False,
        "columns": 2,
        "cardHeight": 230,
    }
    state: dict[str, Any] = {
        "searchFilter": "", "orderByKey": "attributes.start_time", "orderByAsc": False, "startTime": "ALL",
        "lifecycleFilter": "Active", "datasetsFilter": [], "modelVersionFilter": "All Runs",
        "selectedColumns": ["attributes.`Dataset`", *(f"metrics.`{metric}`" for metric in _COLUMNS)],
        "columnOrder": [], "columnWidths": {}, "runsHiddenMode": "SHOWALL", "compareRunCharts": charts,
        "compareRunSections": [section], "viewMaximized": False, "runListHidden": False, "isAccordionReordered": True,
        "useGroupedValuesInCharts": True, "hideEmptyCharts": True, "groupsExpanded": {},
        "groupBy": {"aggregateFunction": "average", "groupByKeys": [{"mode": "param", "groupByData": "mode"}]},
        "globalLineChartConfig": {"xAxisKey": "step", "lineSmoothness": 0, "selectedXAxisMetricKey": ""},
    }  # fmt: skip
    text = base64.b64encode(zlib.compress(json.dumps(state).encode())).decode()
    return json.dumps({"name": _NAME, "createdAt": 0, "updatedAt": 0, "state": f"deflate;{text}"})


def view_path(experiment: str) -> str:
    """Return the path and query of the view's page in the UI of an MLflow server."""
    return (
        f"/#/experiments/{experiment}/runs?workflowType=machine_learning&compareRunsMode=CHART&viewStateShareKey={VIEW}"
    )
