"""Name, note, parameters and data sets of a run in MLflow, and the view of its experiment. Pure."""

from __future__ import annotations

import ast
import base64
import hashlib
import json
import re
import shlex
import zlib
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from gbactl.data.dataset import Dataset

UNNAMED = (
    "mode", "seed", "experiment", "run_dir", "resume", "data.", "tracking.", "switch.", "hydra.", "hydra/",
    "objective", "rerun",
)  # fmt: skip
AS_TYPED = {"None": "null", "True": "true", "False": "false"}
LONGEST_VALUE, LONGEST_NAME = 20, 100  # characters in a run's name
LONGEST = 60  # characters of a value that are shown
LONG_NUMBER = re.compile(r"-?(?=[\d.]{6})\d*\.\d+(e[-+]?\d+)?", re.IGNORECASE)
COMPACT = re.compile(r"([:,])(?=\S)")  # without the space that YAML wants: {at:{day:2}}, as Hydra's sweeps write it
ALWAYS = ("mode.name", "data.name", "cluster.name", "faults.name", "seed")
NOT_LOGGED = (
    "run_dir", "tracking", "tracking.", "hydra", "hydra.", "hydra/", "switch.modes", "data.cache",
    "objective", "rerun",
)  # fmt: skip
CONFIG_TAG = "gbactl.config"
MODE_TAG = "gbactl.mode"  # tag of a training: its mode, or its modes where it has switched: sync>gba@day2
LONGEST_LINE = 90  # characters of a command in a note
LONGEST_TAG = 4900  # characters, which every MLflow server takes
FIGURES = (
    ("AUC", "auc", ".5f"), ("log loss", "logloss", ".5f"), ("NE", "ne", ".4f"), ("EPS", "eps", ",.0f"),
    ("steps", "global_step", ",.0f"), ("virtual s", "virtual_seconds", ",.1f"), ("wall s", "wall_seconds", ",.1f"),
)  # fmt: skip
VIEW = "gbactl_by_mode"  # key of the view
VIEW_TAG = f"mlflow.sharedViewState.{VIEW}"
_VIEW_NAME = "By mode"
_VIEW_CHARTS = (
    ("auc", "LINE"), ("eps", "BAR"), ("loss", "LINE"), ("staleness", "BAR"), ("train/progressive_auc", "LINE"),
    ("logloss", "LINE"),
)  # fmt: skip
_VIEW_COLUMNS = ("auc", "logloss", "eps", "staleness")
_VIEW_SECTION = "gbactl_main"


@dataclass(frozen=True)
class SweepPlace:
    """Place of a run in its sweep: the `number`-th of `of`; `took`: seconds of the finished runs."""

    number: int
    of: int
    took: tuple[float, ...] = ()

    def __str__(self) -> str:
        """Name the place, as "run 2 of 6"."""
        return f"run {self.number} of {self.of}"

    def seconds_left(self, elapsed: float, own: float | None) -> float | None:
        """Estimate the seconds until the sweep ends, from the seconds that this run has taken and still needs.

        `own` is None while it is unknown; the estimate is unknown then too, unless other runs have finished."""
        if own is None and not self.took:
            return None
        mean = sum(self.took) / len(self.took) if self.took else elapsed + (own or 0.0)
        return (max(0.0, mean - elapsed) if own is None else own) + (self.of - self.number) * mean


@dataclass(frozen=True)
class CommandLine:
    """Command line of a run: command and typed overrides; in a sweep also the varied keys, and its place."""

    verb: str = "train"
    overrides: tuple[str, ...] = ()
    swept: tuple[str, ...] | None = None
    place: SweepPlace | None = None

    @property
    def text(self) -> str:
        """Command line, quoted for a shell, without `run_dir=`, as that directory already holds a run.

        It stays beside `resume=`: without it, the command would continue the other run in that one's directory."""
        resumes = any(each.startswith("resume=") for each in self.overrides)
        kept = [each for each in self.overrides if resumes or not each.startswith("run_dir=")]
        return shlex.join(["gbactl", self.verb, *kept])

    def retyped(self, text: str) -> CommandLine:
        """Return the command line `text` of an earlier start of the same run, with where this start is tracked."""
        _, verb, *overrides = shlex.split(text)
        tracked = (each for each in self.overrides if each.startswith("tracking.") and each not in overrides)
        return replace(self, verb=verb, overrides=(*overrides, *tracked))

    def overrides_by_key(self) -> dict[str, str]:
        """Return the overrides by key, without deletions; for a key that was typed twice, the last value."""
        pairs = (text.lstrip("+").split("=", 1) for text in self.overrides if "=" in text and not text.startswith("~"))
        return {key: value for key, value in pairs}


def run_name(modes: str, seed: int, command: CommandLine, ineffective: Collection[str] = ()) -> str:
    """Name a run by its modes, by what was typed (in a sweep: what the sweep varies), and by its seed: gba iota=3 s1.

    Paths, keys that do not change what is trained, and `ineffective` keys are left out."""
    typed = {key: value for key, value in command.overrides_by_key().items() if key not in ineffective}
    parts = [
        f"{key.rpartition('.')[2]}={_cut(short(rounded(value)))}" for key, value in typed.items()
        if (command.swept is None or key in command.swept) and not _matches(key, UNNAMED) and "/" not in value
    ]  # fmt: skip
    ending = f" s{seed}"
    return " ".join([modes, *parts])[: LONGEST_NAME - len(ending)] + ending


def _matches(key: str, listed: Sequence[str]) -> bool:
    """Whether a key equals an entry of `listed`, or begins with an entry that ends in a dot or slash."""
    return key in listed or key.startswith(tuple(each for each in listed if each[-1] in "./"))


def _cut(value: str) -> str:
    return value if len(value) <= LONGEST_VALUE else f"{value[: LONGEST_VALUE - 3]}..."


def rounded(value: str) -> str:
    """Write a long number with four significant digits, but not .99999 as 1; other text is returned as it is."""
    text = f"{float(value):.4g}" if LONG_NUMBER.fullmatch(value) else value
    return value if text == "1" else text


def short(value: str) -> str:
    """Shorten a value to a readable text of limited length that still differs for different values.

    A structure (fault plans, a switch schedule) is named by its entries, not shown."""
    if value[:2] == "[{":
        return _structure(value)
    parsed = _parsed(value) if value[:1] in ("[", "{") else value
    text = _plain(parsed)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 8]}...{_hash(parsed)}"


def _hash(value: Any) -> str:
    """Hash a parsed value, so that the same value has the same hash however it was typed."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:4]


def _parsed(value: str) -> Any:
    """Read a list or dictionary as Python shows it or as Hydra takes it; other text is returned as it is."""
    with suppress(ValueError, SyntaxError):
        return ast.literal_eval(value)
    with suppress(yaml.YAMLError):
        return yaml.safe_load(value)
    return value


def _structure(value: str) -> str:
    """Name a list of entries, as "constant W1 x4 + kill S0"; a hash is appended if the name is incomplete."""
    entries = _parsed(COMPACT.sub(r"\1 ", value))
    named = [_entry(each) for each in entries] if isinstance(entries, list) else [("", False)]
    text = " + ".join(name for name, _ in named)
    text = text if len(text) <= LONGEST - 8 else f"{len(named)} entries"
    complete = all(whole for _, whole in named) and text[:1].isalpha()
    return text if complete else f"{text} #{_hash(entries)}".lstrip()


def _entry(each: Any) -> tuple[str, bool]:
    """Name an entry of a list; return also whether the name describes the entry completely."""
    if not isinstance(each, dict):
        return "", False
    rest = {
        key: value for key, value in each.items() if key not in ("at", "to", "kind", "workers", "servers", "factor")
    }
    if "to" in each:
        point = "".join(f"{unit}{value}" for unit, value in dict(each.get("at") or {}).items())
        return f"{each['to']}@{point}", not rest
    who = [_targets(key, each[key]) for key in ("workers", "servers") if key in each]
    factor = [f"x{each['factor']}"] if "factor" in each else []
    return " ".join([str(each.get("kind", "entry")), *who, *factor]), not rest


def _targets(key: str, chosen: Any) -> str:
    """Name the processes that a fault concerns: W0,2 or all workers."""
    return f"{key[0].upper()}{_plain(chosen).strip('[]')}" if isinstance(chosen, list) else f"{chosen} {key}"


def _plain(value: Any) -> str:
    """Format a value without Python's quotes and braces, and its constants as they are typed."""
    if isinstance(value, dict):
        return " ".join(f"{key} {_plain(each)}" for key, each in value.items())
    if isinstance(value, list):
        return f"[{','.join(_plain(each) for each in value)}]"
    return AS_TYPED.get(str(value), str(value))


def config_tag(config: Mapping[str, Any]) -> str:
    """Write a nested configuration, but for its group `tracking`, as JSON that fits into a tag.

    Where it is too long, long values are cut, and get a hash by which they still differ."""
    kept = {key: value for key, value in config.items() if key != "tracking"}
    for longest in (LONGEST_TAG, 1000, 200, 100):
        text = json.dumps(_shortened(kept, longest), separators=(",", ":"))
        if len(text) <= LONGEST_TAG:
            return text
    return text


def _shortened(value: Any, longest: int) -> Any:
    if isinstance(value, Mapping) and value:
        return {key: _shortened(inner, longest) for key, inner in value.items()}
    text = str(value)
    if len(text) <= longest:
        return value
    return f"{text[: longest - 20]}...{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def parameters(config: Mapping[str, Any], command: CommandLine, defaults: Mapping[str, Any]) -> dict[str, str]:
    """Return the parameters to log: typed keys, keys that differ from the defaults, and the keys in ALWAYS.

    `config` and `defaults` have flattened keys. A group's choice is logged under the group's name: faults=one_slow. The
    whole configuration is in the tag CONFIG_TAG. A structure, such as fault plans, is named by its entries."""
    typed = {key.partition("@")[0]: value for key, value in command.overrides_by_key().items()}
    found = {key: value for key, value in config.items() if key in typed or value != defaults.get(key)}
    found |= {key: config[key] for key in ALWAYS if key in config}
    named = {key.removesuffix(".name") if key.count(".") == 1 else key: value for key, value in found.items()}
    groups = {key: value for key, value in typed.items() if "." not in key and key not in config}
    kept = {key: str(value) for key, value in {**named, **groups}.items() if not _matches(key, NOT_LOGGED)}
    return {key: short(value) if value.startswith("[{") else value for key, value in kept.items()}


def run_note(
    headline: str, command: CommandLine, result: Mapping[str, Any] | None = None, events: Sequence[str] = ()
) -> str:
    """Write a run's note in Markdown: its headline, what happened, its figures, and the command that runs it again.

    `result` is None while the run goes on."""
    parts = [headline]
    if result is not None:
        happened = [*events, *([f"error: {result['error']}"] if result.get("error") else [])]
        parts.append("\n".join(f"- {event}" for event in happened) or "No switch, no failure, no injected fault.")
        if table := _figures(result):
            parts.append(table)
    return "\n\n".join([*parts, f"Run it again:\n\n```sh\n{folded(command.text)}\n```"])


def folded(command: str) -> str:
    """Break a command line between its words into lines of about LONGEST_LINE characters, which a shell joins."""
    lines = [""]
    for word in map(shlex.quote, shlex.split(command)):
        if lines[-1] and len(lines[-1]) + len(word) > LONGEST_LINE:
            lines.append(" ")
        lines[-1] += f" {word}" if lines[-1] else word
    return " \\\n".join(lines)


def _figures(result: Mapping[str, Any]) -> str:
    """Write the figures of a result as a Markdown table of one row; "" if it has none."""
    found = [(title, format(result[key], form)) for title, key, form in FIGURES if result.get(key) is not None]
    stale = result.get("staleness") or {}
    if stale.get("mean") is not None:
        found.append(("staleness mean / p99", f"{stale['mean']:.1f} / {stale.get('p99', 0):.0f}"))
    if not any(title == "AUC" for title, _ in found):
        return ""
    titles, values = zip(*found, strict=True)
    rows = (titles, ["---:"] * len(found), values)
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


CONTEXT = "mlflow.data.context"
MOST_FIELDS = 1000  # columns that a schema lists


def dataset_inputs(
    dataset: Dataset, data: Mapping[str, Any], trained: Collection[int], evaluated: Collection[int]
) -> list[dict[str, str]]:
    """Describe the splits (by index) that a run trains on, and those that it evaluates, as two data sets.

    `data`: the configuration's group of that name."""
    found = []
    for context, places in (("train", trained), ("eval", evaluated)):
        splits = [dataset.splits[place] for place in sorted(places)]
        names = [split.name for split in splits]
        digest = hashlib.sha256(json.dumps([dataset.fingerprint, names]).encode()).hexdigest()[:8]
        profile = {"num_rows": sum(split.rows for split in splits), "splits": names}
        found.append({
            "name": str(data["name"]), "digest": digest, **_source(data), "schema": json.dumps(_schema(dataset)),
            "profile": json.dumps(profile), "context": context,
        })  # fmt: skip
    return found


def _source(data: Mapping[str, Any]) -> dict[str, str]:
    """Return the type of source and the source: the files that were read, or the command that generates the data."""
    given = [data[key] for key in ("path", "train", "validation", "test") if data.get(key)]
    paths = [each for value in given for each in ([value] if isinstance(value, str) else value)]
    if paths:
        places = [each if "://" in each else str(Path(each).absolute()) for each in paths]
        scheme = places[0].partition("://")[0] if "://" in places[0] else "local"
        return {"source_type": scheme, "source": json.dumps({"uri": ", ".join(places)})}
    keys = " ".join(f"data.{key}={value}" for key, value in data.items() if key not in ("name", "cache"))
    tags = {"mlflow.source.name": f"gbactl data prepare data={data['name']} {keys}", "mlflow.source.type": "LOCAL"}
    return {"source_type": "code", "source": json.dumps({"tags": tags})}


def _schema(dataset: Dataset) -> dict[str, list[dict[str, object]]]:
    """Return the columns of a data set: label, numeric features, categorical fields."""
    columns = [("label", "integer")]
    columns += [(str(name), "float") for name in dataset.meta["numeric_names"]]
    columns += [(str(name), "integer") for name in dataset.meta["field_names"]]
    return {"mlflow_colspec": [{"name": name, "type": kind, "required": True} for name, kind in columns[:MOST_FIELDS]]}


def saved_view() -> str:
    """Return the value of the tag VIEW_TAG, by which the UI offers a view: runs grouped by mode, charts of metrics.

    The UI stores it as JSON, compressed by deflate."""
    charts = [
        {
            "uuid": f"gbactl_{metric}", "type": kind, "runsCountToCompare": 10, "metricSectionId": _VIEW_SECTION,
            "deleted": False, "isGenerated": False, "displayName": metric, "metricKey": metric, "xAxisKey": "step",
            "yAxisKey": "metric", "useGlobalXaxisKey": True, "useGlobalLineSmoothing": True, "lineSmoothness": 0,
            "scaleType": "linear", "xAxisScaleType": "linear", "range": {}, "yAxisExpressions": [],
            "selectedXAxisMetricKey": "", "selectedMetricKeys": [metric], "ignoreOutliers": False,
        }
        for metric, kind in _VIEW_CHARTS
    ]  # fmt: skip
    section = {
        "uuid": _VIEW_SECTION,
        "name": "Main metrics",
        "display": True,
        "isReordered": True,
        "deleted": False,
        "columns": 2,
        "cardHeight": 230,
    }
    state: dict[str, Any] = {
        # by this filter, and not sorted by time, the UI leaves out the parent runs of sweeps, which have no mode
        "searchFilter": f"tags.`{MODE_TAG}` LIKE '%'", "orderByKey": "tags.`mlflow.runName`", "orderByAsc": True,
        "startTime": "ALL",
        "lifecycleFilter": "Active", "datasetsFilter": [], "modelVersionFilter": "All Runs",
        "selectedColumns": ["attributes.`Dataset`", *(f"metrics.`{metric}`" for metric in _VIEW_COLUMNS)],
        "columnOrder": [], "columnWidths": {}, "runsHiddenMode": "SHOWALL", "compareRunCharts": charts,
        "compareRunSections": [section], "viewMaximized": False, "runListHidden": False, "isAccordionReordered": True,
        "useGroupedValuesInCharts": True, "hideEmptyCharts": True, "groupsExpanded": {},
        "groupBy": {"aggregateFunction": "average", "groupByKeys": [{"mode": "tag", "groupByData": MODE_TAG}]},
        "globalLineChartConfig": {"xAxisKey": "step", "lineSmoothness": 0, "selectedXAxisMetricKey": ""},
    }  # fmt: skip
    text = base64.b64encode(zlib.compress(json.dumps(state).encode())).decode()
    return json.dumps({"name": _VIEW_NAME, "createdAt": 0, "updatedAt": 0, "state": f"deflate;{text}"})


def view_path(experiment: str) -> str:
    """Return the path and query of the view's page in the UI of an MLflow server."""
    return (
        f"/#/experiments/{experiment}/runs?workflowType=machine_learning&compareRunsMode=CHART&viewStateShareKey={VIEW}"
    )
