"""Training on multi-valued fields: every kind of mode, a switch, replays, and the bits of `sync`."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gbactl.config import RunConfig
from gbactl.data.cache import prepare
from gbactl.data.dataset import Batch, Dataset, Jagged, ListField, Schema, Split, open_dataset
from gbactl.replay.replay_command import replay, sentence
from gbactl.simulation.simulated_run import run_virtual
from tests.support import small_data
from tests.support.memory_cluster import run_in_memory
from tests.support.simulated_runs import adds_up, config, model

LISTS = {
    **small_data.options(1500), "lists": 2, "list_length": 5, "history_length": 7, "skew": 0.6, "drift": 0.0,
}  # fmt: skip


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The configuration's data group, of three days."""
    return {**LISTS, "days": 3, "cache": str(tmp_path_factory.mktemp("cache"))}


def shuffled(cfg: RunConfig, options: dict[str, Any], cluster: str = "virtual") -> RunConfig:
    train = dataclasses.replace(cfg.train, shuffle=True)
    return dataclasses.replace(
        cfg, data=options, train=train, cluster=dataclasses.replace(cfg.cluster, name=cluster, threads=1)
    )


def of_model(cfg: RunConfig, name: str) -> RunConfig:
    given: dict[str, Any] = {} if name == "deepfm" else {"first_order": False}
    given |= {"options": {"attention": [8]}} if name == "din" else {}
    return dataclasses.replace(cfg, model=dataclasses.replace(cfg.model, name=name, **given))


def virtual(cfg: RunConfig, dataset: Dataset, run_dir: Path) -> dict[str, Any]:
    run_dir.mkdir(parents=True, exist_ok=True)
    return run_virtual(cfg, dataset, run_dir)


@pytest.mark.quick(3)
@pytest.mark.parametrize(
    ("mode", "cluster", "pooling", "switches", "name"),
    [
        ("sync", "virtual", "mean", [], "deepfm"),
        ("async", "virtual", "max", [], "din"),
        ("gba", "virtual", "sum", [], "dien"),
        ("sync", "virtual", "max", [{"at": {"day": 1}, "to": "gba"}], "din"),
        ("hop_bs", "virtual", "mean", [], "din"),
        ("fr_ma", "virtual", "mean", [], "din"),
        ("async", "local", "mean", [], "deepfm"),
        ("gba", "local", "max", [], "din"),
    ],
)
def test_runs_of_all_kinds_account_for_every_sample_and_come_out_again(
    options: dict[str, Any], tmp_path: Path, mode: str, cluster: str, pooling: str, switches: list[dict[str, Any]],
    name: str,
) -> None:  # fmt: skip
    cfg = of_model(shuffled(config(mode, switches=switches), {**options, "pooling": pooling}, cluster), name)
    path = prepare(cfg.data)
    result = run_in_memory(cfg, path, tmp_path) if cluster == "local" else virtual(cfg, open_dataset(path), tmp_path)
    adds_up(result, 3000)
    if mode == "fr_ma":
        return  # replicas are not replayed
    verdict = replay(tmp_path)
    assert verdict["identical"], sentence(verdict)
    assert verdict["steps"] == result["global_step"] > 0


@pytest.mark.parametrize("name", ["deepfm", "din"])
def test_sync_gives_the_same_bits_on_any_number_of_servers(options: dict[str, Any], tmp_path: Path, name: str) -> None:
    dataset = open_dataset(prepare(options))
    found = {
        model(
            virtual(of_model(shuffled(config("sync", servers=servers), options), name), dataset, tmp_path / str(number))
        )
        for number, servers in enumerate((1, 3, 3))
    }
    assert len(found) == 1


def as_lists(dataset: Dataset, columns: int, pooling: str) -> Dataset:
    """The same data with all but the first columns as lists of one value, and one list that is always empty."""
    whole, schema = dataset.splits, dataset.schema
    lists = schema.columns - columns
    kinds = (*[ListField(1, pooling)] * lists, ListField(1))

    def turned(batch: Batch) -> Batch:
        rows = len(batch)
        lengths = np.tile([*[1] * lists, 0], rows)
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        values = np.ascontiguousarray(batch.ids[:, columns:]).reshape(-1)
        return Batch(batch.labels, batch.numeric, batch.ids[:, :columns].copy(), Jagged(lists + 1, offsets, values))

    changed = Schema(schema.numeric, (*schema.cardinalities, 7), (), kinds)
    return dataclasses.replace(
        dataset, schema=changed, splits=tuple(Split(split.name, turned(split.whole)) for split in whole)
    )


@pytest.mark.parametrize("pooling", ["sum", "mean", "max"])
def test_lists_of_one_value_give_the_bits_of_columns(tmp_path: Path, pooling: str) -> None:
    """A field whose lists are always empty is a vector of zeros: a column of ids of which the others know nothing."""
    given = {**small_data.options(1500), "cache": str(tmp_path / "cache")}
    dataset, cfg = open_dataset(prepare(given)), shuffled(config("sync", hard=False), given)
    first, *others = (
        virtual(cfg, as_lists(dataset, columns, pooling), tmp_path / str(columns))
        for columns in (dataset.schema.columns, 2, 0)
    )
    for each in others:
        assert all(each[name] == first[name] for name in ("auc", "logloss", "global_step"))
        assert model(each) == model(first)


def test_lists_are_learned_from(options: dict[str, Any], tmp_path: Path) -> None:
    data = {**options, "rows_per_day": 12_000, "lists": 1, "list_length": 3, "history_length": 0}
    dataset = open_dataset(prepare(data))
    blind = dataclasses.replace(
        dataset,
        schema=dataclasses.replace(dataset.schema, cardinalities=dataset.schema.cardinalities[:4], tables=(), lists=()),
        splits=tuple(
            Split(split.name, dataclasses.replace(split.whole, jagged=None)) for split in dataset.splits
        ),
    )  # fmt: skip
    cfg = shuffled(config("gba", hard=False, global_batch=256), data)
    cfg = dataclasses.replace(cfg, optim=dataclasses.replace(cfg.optim, lr=0.02))
    seen, unseen = (virtual(cfg, each, tmp_path / name)["auc"] for name, each in (("a", dataset), ("b", blind)))
    best = dataset.best_auc[dataset.splits[-1].name]
    assert unseen + 0.03 < seen < best


def test_attention_learns_more_of_histories_than_their_mean(options: dict[str, Any], tmp_path: Path) -> None:
    """The label depends on the item of the history that is most like the target item."""
    data = {
        **options, "rows_per_day": 30_000, "days": 2, "numeric": 0, "fields": 2, "max_cardinality": 30, "lists": 0,
        "history_length": 8, "skew": 0.0, "noise": 0.0, "signal": 2.5,
    }  # fmt: skip
    dataset, found = open_dataset(prepare(data)), {}
    for name in ("youtube_dnn", "din"):
        cfg = of_model(shuffled(config("sync", hard=False, workers=2, servers=1, global_batch=256), data), name)
        cfg = dataclasses.replace(
            cfg, model=dataclasses.replace(cfg.model, dim=8, hidden=[32]), optim=dataclasses.replace(cfg.optim, lr=0.03)
        )
        found[name] = virtual(cfg, dataset, tmp_path / name)["auc"]
    assert found["youtube_dnn"] + 0.015 < found["din"] < dataset.best_auc[dataset.splits[-1].name]
