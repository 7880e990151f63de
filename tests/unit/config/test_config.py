"""The schema: types, cross-field rules, rounds, and what each complaint tells the user to type."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import pytest

from gbactl.config import Round, RunConfig, TrainConfig, check, engine_interface, flatten, from_dict, rounds, to_dict
from gbactl.config.run_config import effective_keys, ineffective_keys, when_effective
from gbactl.config.validation import check_transport
from gbactl.errors import ConfigError


def test_the_defaults_are_a_valid_run() -> None:
    cfg = from_dict({})
    assert (cfg.mode.name, cfg.cluster.workers, cfg.cluster.servers, cfg.train.global_batch) == (
        "sync",
        4,
        2,
        2048,
    )
    assert (cfg.local_batch, cfg.gradients_per_step) == (512, 4)


def test_a_configuration_survives_plain_containers() -> None:
    cfg = from_dict({"mode": {"name": "gba", "iota": 5}, "data": {"name": "criteo", "path": ["a", "b"]}, "seed": 7})
    assert from_dict(to_dict(cfg)) == cfg
    assert cfg.data["path"] == ["a", "b"]


def test_batches() -> None:
    cfg = from_dict({"mode": {"name": "gba", "local_batch": 256}, "train": {"global_batch": 4096}})
    assert (cfg.local_batch, cfg.gradients_per_step) == (256, 16)


def test_threads_are_shared_by_the_workers_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_interface, "usable_cores", lambda: 8)
    assert from_dict({"cluster": {"workers": 4, "servers": 1}}).threads == 2
    assert from_dict({"cluster": {"workers": 16}}).threads == 1
    assert from_dict({"cluster": {"threads": 3}}).threads == 3


@pytest.mark.parametrize(
    ("local_batch", "given", "milliseconds"),
    [(128, None, 3.0), (1024, None, 3.0), (2048, None, 6.0), (4096, None, 12.0), (4096, 3.0, 3.0)],
)
def test_horovods_thread_looks_less_often_where_steps_are_long(
    local_batch: int, given: float | None, milliseconds: float
) -> None:
    values = {"train": {"global_batch": 2 * local_batch}, "collective": {"cycle_time_ms": given}}
    assert from_dict(values | {"cluster": {"workers": 2}}).cycle_time_ms == milliseconds


def test_the_shortest_steps_of_a_run_that_switches_count() -> None:
    cfg = from_dict(
        {
            "train": {"global_batch": 16384}, "cluster": {"workers": 4},
            "switch": {"schedule": [{"at": {"day": 1}, "to": "gba", "set": {"local_batch": 1024}}]},
        }
    )  # fmt: skip
    assert [phase.local_batch for phase in cfg.possible] == [4096, 1024] and cfg.cycle_time_ms == 3.0


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"mode": {"name": "turbo"}}, r"mode\.name=turbo is not known; type .*= one of: async, bsp, .*hop_bw, .*sync\."),
    ({"mode": {"name": "gba", "decay": "soft"}}, r"mode\.decay= one of: hard, inverse, exp"),
    ({"mode": {"name": "gba", "divisor": "N"}}, r"mode\.divisor= one of: M, accepted"),
    ({"mode": {"name": "gba", "row_staleness": "id"}}, r"mode\.row_staleness= one of: token, row"),
    ({"cluster": {"name": "nowhere"}}, r"^cluster=nowhere is not known; type cluster= one of: .*ray, .*virtual\.$"),
    ({"cluster": {"name": "agent"}}, r"^cluster=agent is not known"),  # a module of the engines that is no place
    ({"cluster": {"name": "nowhere", "workers": None}}, r"^cluster=nowhere is not known"),
    ({"cluster": {"wrokers": 2}}, r"^cluster=local has no key wrokers; keys are: name, .* Did you mean workers\?$"),
    ({"mode": {"iota": 3}}, r"mode=sync has no key iota; it has none of its own"),
    ({"mode": {"sparse_divisor": "N"}}, r"mode\.sparse_divisor= one of: global, contributors"),
    ({"mode": {"prefetch": "all"}}, r"mode\.prefetch= one of: none, data, rows"),
    ({"mode": {"prefetch": 2}}, r"^mode\.prefetch=2 is not "),
    ({"mode": {"name": "gba", "iota": -1}}, r"^mode\.iota=-1 is not a number from 0 to inf; type .*iota=3\.$"),
    ({"mode": {"name": "gba", "decay_rate": 1.5}}, r"mode\.decay_rate=1\.5 is not a number from 0 to 1; type"),
    ({"cluster": {"transport": "udp"}}, r"cluster\.transport= one of: shm, tcp"),
    ({"transport": {"wire_dtype": "int8"}}, r"transport\.wire_dtype= one of: fp32, fp16, bf16"),
    ({"transport": {"encrypt": "yes"}}, r"transport\.encrypt='yes' is not"),
    ({"cluster": {"workers": 0}}, r"cluster\.workers=0 is not a whole number from 1 to 65536; type .*=4\."),
    ({"cluster": {"servers": 0}}, r"cluster\.servers=0 is not a whole number from 1 to 65536; type"),
    ({"cluster": {"servers": 2, "dense_servers": 3}}, r"cluster\.dense_servers=3 cannot be.*type 1 to 2, or null"),
    ({"cluster": {"dense_servers": 0}}, r"dense_servers=0 is not a whole number from 1 to .* or null; type .*=null\."),
    ({"cluster": {"threads": 0}}, r"cluster\.threads=0 is not a whole number from 1 to 65536 or null; type"),
    ({"cluster": {"start_timeout": 0}}, r"cluster\.start_timeout=0 is not a number from 1 to"),
    ({"cluster": {"stop_seconds": -1}}, r"cluster\.stop_seconds=-1 is not a number from 0 to"),
    ({"collective": {"name": "nccl"}}, "collective= one of: horovod, gloo"),
    ({"collective": {"cycle_time_ms": 0}}, r"collective\.cycle_time_ms=0 is not a number from 0\.01 to 10000 or null"),
    ({"collective": {"buckets": 0}}, r"collective\.buckets=0 is not a whole number from 1 to 1000; type"),
    ({"model": {"name": "fm"}}, r"^model=fm is not known; type model= one of: autoint, dcnv2, deepfm, "),
    ({"model": {"name": "dcnv2", "layer": 2}}, r"model has no key layer; keys are: .*, layers, rank, "),
    ({"model": {"layers": 2}}, r"model has no key layers; keys are: .*dim, dims, hidden"),
    ({"model": {"dims": {"C1": 0}}}, r"model\.dims=.* keys with values, each a whole number from 1 to 65536 or null"),
    ({"model": {"dropout": 1.0}}, r"model\.dropout=1\.0 is not a number of at least 0 and below 1;"),
    ({"model": {"dim": 0}}, r"model\.dim=0 is not a whole number from 1 to 65536; type .*=16\."),
    ({"model": {"hidden": [64, 0]}}, r"model\.hidden=\[64, 0\] is not a list, each a whole number from 1 to"),
    ({"optim": {"name": "lion"}}, r"optim= one of: sgd, adagrad, rowwise_adagrad, adam"),
    ({"optim": {"lr": 0.0}}, r"^optim\.lr=0\.0 is not a number above 0 and at most 1e\+38; type .*=0\.001\.$"),
    ({"optim": {"beta2": 1 - 1e-9}}, r"^optim\.beta2=0\.999999999 is not a number from 0 to 0\.999995; type"),
    ({"optim": {"row_l2": "some"}}, r"optim\.row_l2= one of: touched, all"),
    ({"optim": {"schedule": {"name": "step"}}}, r"optim\.schedule\.name= one of: constant, linear"),
    *(
        ({"optim": {"schedule": {"name": "cosine", "warmup": most, "total": most}}}, "type a total above the warm-up")
        for most in (0, 9)
    ),
    ({"precision": "fp16"}, "precision= one of: fp32, bf16"),
    ({"checkpoint": {"dtype": "fp16"}}, r"checkpoint\.dtype=fp16 is not known; type .* one of: fp32, bf16"),
    ({"train": {"epochs": 0}}, r"train\.epochs=0 is not a whole number from 1 to 2147483647; type"),
    ({"train": {"eval_batch": 0}}, r"train\.eval_batch=0 is not a whole number from 1"),
    ({"train": {"patience": -1}}, r"train\.patience=-1 is not a whole number from 0 to"),
    ({"train": {"global_batch": 0}}, r"train\.global_batch=0 is not a whole number from 1"),
    ({"train": {"global_batch": 1001}}, r"type train\.global_batch=1004 or set mode\.local_batch"),
    (
        {"mode": {"name": "gba", "local_batch": 300}, "train": {"global_batch": 1000}},
        r"train\.global_batch=1000 is not a multiple of mode\.local_batch=300; type .*batch=1200\.",
    ),
    ({"mode": {"name": "gba", "local_batch": 0}}, r"mode\.local_batch=0 is not a whole number from 1"),
    (
        {"mode": {"name": "sync", "local_batch": 256}, "train": {"global_batch": 2048}},
        r"leave mode\.local_batch out or type train\.global_batch=1024",
    ),
    (
        {"seed": 99999999999999999999},
        r"^seed=99999999999999999999 is not a whole number from 0 to 9223372036854775807; type for instance seed=0\.$",
    ),
    (
        {"cluster": {"hang_seconds": 1e-9}},
        r"^cluster\.hang_seconds=1e-09 is not a number from 0\.001 to 1e\+09; type for instance .*=10\.0\.$",
    ),
    (
        {"cluster": {"hang_seconds": 0.05}},
        r"^cluster\.hang_seconds=0\.05 is too short to tell a .* busy; type cluster\.hang_seconds=0\.1 or more\.$",
    ),
    ({"seed": "abc"}, "seed='abc' is not a whole number"),
    ({"seed": True}, "seed=True is not a whole number"),
    ({"cluster": {"workers": "4"}}, r"cluster\.workers='4' is not a whole number"),
    ({"cluster": {"workers": 4.0}}, r"cluster\.workers=4\.0 is not a whole number"),
    ({"optim": {"lr": "fast"}}, r"optim\.lr='fast' is not a number"),
    ({"model": {"hidden": 64}}, r"model\.hidden=64 is not a list"),
    ({"model": {"hidden": [1.5]}}, r"model\.hidden=\[1\.5\] is not a list"),
    ({"run_dir": 3}, "run_dir=3 is not text or null"),
    ({"tracking": {"tags": {"a": 1}}}, r"tracking\.tags"),
    ({"mode": "gba"}, "mode is a group of keys, not 'gba'"),
    ({"modes": {}}, "The configuration has no key modes; keys are: mode, data"),
    ({"optim": {"schedule": {"nam": 1}}}, r"optim\.schedule has no key nam; keys are: name, warmup"),
]  # fmt: skip


@pytest.mark.parametrize(("values", "message"), WRONG, ids=[str(values) for values, _ in WRONG])
def test_what_cannot_work_says_what_to_type(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        from_dict(values)
    assert caught.value.exit_code == 2
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "values",
    [
        {"mode": {"name": "gba", "iota": float("inf")}},
        {"mode": {"name": "gba", "iota": 0}},
        {
            "mode": {"name": "async", "local_batch": 100},
            "train": {"global_batch": 100},
            "cluster": {"workers": 3},
        },
        {"mode": {"local_batch": 512}},
        {"optim": {"lr": 1}},
        {"cluster": {"name": "virtual", "hang_seconds": 0.02}},
        {"model": {"hidden": []}},
        {"tracking": {"tags": {"study": "a"}}},
    ],
)
def test_what_works(values: dict[str, Any]) -> None:
    assert check(from_dict(values))


def test_every_key_of_the_schema_is_a_scalar_or_a_list_when_flattened() -> None:
    flat = flatten(to_dict(RunConfig()))
    assert {"mode.name", "optim.schedule.total", "model.hidden", "seed"} <= set(flat)
    assert flat["model.hidden"] == [400, 400, 400]
    assert {key.split(".")[0] for key in flat} == {f.name for f in dataclasses.fields(RunConfig)}
    assert flatten({"a": {"b": {"c": 1}}, "d": {}}) == {"a.b.c": 1, "d": {}}


@pytest.mark.parametrize("switched", [False, True])
def test_replicas_are_saved_like_others(switched: bool) -> None:
    schedule = [{"at": {"samples": 9}, "to": "shadow_easgd"}] if switched else []
    own: dict[str, Any] = {"mode": {"name": "gba" if switched else "shadow_easgd"}, "switch": {"schedule": schedule}}
    check(from_dict({**own, "checkpoint": {"name": "full"}, "resume": "runs/one"}))


@pytest.mark.parametrize("collective", ["horovod", "gloo"])
def test_what_no_encryption_reaches_is_refused_between_hosts(collective: str) -> None:
    """On one host a ring does not leave it."""

    def cfg(mode: str, place: str, encrypt: bool) -> RunConfig:
        run = from_dict({"mode": {"name": mode}, "collective": {"name": collective}, "transport": {"encrypt": encrypt}})
        return dataclasses.replace(run, cluster=dataclasses.replace(run.cluster, name=place))

    for allowed in (cfg("sync", "local", True), cfg("sync", "hosts", False), cfg("gba", "hosts", True)):
        check_transport(allowed)
    with pytest.raises(ConfigError, match=r"does not reach the all-reduce .* type a mode without one"):
        check_transport(cfg("sync", "hosts", True))


OF_ADAM = ("name", "lr", "row_lr", "beta1", "beta2", "eps", "weight_decay", "row_weight_decay")


def test_keys_that_do_not_act_are_left_out() -> None:
    whole = to_dict(RunConfig())
    found = effective_keys(RunConfig())
    assert found["checkpoint"] == {"name": "none"} and found["cost"] == {"name": "laptop"}
    assert "hosts" not in found["cluster"] and "every" not in found["switch"]
    assert found["optim"] == {key: whole["optim"][key] for key in OF_ADAM} | {"schedule": {"name": "constant"}}
    assert not {"sparse_divisor", "epochs", "batch_norm_momentum"} & {*found["mode"], *found["train"], *found["model"]}
    assert found["collective"] == whole["collective"] and "pin" in found["cluster"] and "seed" not in found["faults"]
    used: dict[str, Any] = {
        "cluster": {"name": "virtual", "workers": 2}, "checkpoint": {"name": "cpr_mfu"}, "switch": {"name": "auto"},
        "collective": {"name": "shm"}, "faults": {"plans": [{"kind": "constant", "workers": [1], "factor": 4}]},
    }  # fmt: skip
    config, acting = to_dict(from_dict(used)), effective_keys(from_dict(used))
    assert all(acting[group] == config[group] for group in ("cost", "checkpoint", "faults"))
    assert "every" in acting["switch"] and not {"pin", "transport", "threads", "bind"} & set(acting["cluster"])
    assert acting["collective"] == {"name": "shm", "buckets": 2} and acting["transport"] == {"wire_dtype": "fp32"}
    gba = effective_keys(from_dict({"mode": {"name": "gba"}}))
    assert gba["collective"] == {"name": "horovod"} and gba["seed"] == 0
    assert ineffective_keys(from_dict(used)) == {key for key in flatten(config) if key not in flatten(acting)}
    assert when_effective("seed") == when_effective("cost.name") == "in every run"
    assert when_effective("cluster.ssh") == "with a cluster= of several hosts"
    assert when_effective("collective.cycle_time_ms") == "with collective=horovod"


@pytest.mark.parametrize(
    ("key", "without", "having"),
    [
        ("mode.sparse_divisor", {"mode": {"name": "async"}}, {"mode": {"name": "bsp"}}),
        ("mode.sparse_divisor", {}, {"switch": {"schedule": [{"at": {"day": 1}, "to": "gba"}]}}),
        ("mode.decay_rate", {"mode": {"name": "gba", "decay_rate": 0.5}},
         {"mode": {"name": "gba", "decay": "exp", "decay_rate": 0.5}}),
        ("optim.beta1", {"optim": {"name": "adagrad"}}, {"optim": {"name": "adam"}}),
        ("optim.initial_accumulator", {"optim": {"name": "adam"}}, {"optim": {"name": "rowwise_adagrad"}}),
        ("optim.eps", {"optim": {"name": "sgd"}}, {"optim": {"name": "adagrad"}}),
        ("optim.row_l2", {}, {"optim": {"row_weight_decay": 0.1}}),
        ("optim.schedule.warmup", {}, {"optim": {"schedule": {"name": "linear"}}}),
        ("optim.schedule.floor", {"optim": {"schedule": {"name": "linear"}}},
         {"optim": {"schedule": {"name": "cosine", "total": 9}}}),
        ("model.batch_norm_momentum", {}, {"model": {"batch_norm": True}}),
        ("model.batch_norm_momentum", {}, {"model": {"name": "din", "activation": "dice"}}),
        ("data.list_length", {"data": {"name": "synthetic", "lists": 0, "list_length": 10}},
         {"data": {"name": "synthetic", "lists": 1, "list_length": 10}}),
        *(
            (f"checkpoint.{key}", {"checkpoint": {"name": name}}, {"checkpoint": {"name": "cpr_mfu"}})
            for key in ("share", "large_tables", "base_every") for name in ("full", "cpr")
        ),
        ("train.epochs", {"data": {"name": "synthetic"}},
         {"data": {"name": "libfm", "train": "a", "validation": "b", "test": "c"}}),
    ],
)  # fmt: skip
def test_a_key_acts_only_beside_the_keys_that_need_it(key: str, without: Any, having: Any) -> None:
    assert key not in flatten(effective_keys(from_dict(without)))
    assert key in flatten(effective_keys(from_dict(having)))
    assert when_effective(key) != "in every run"


@dataclass
class Data:
    kind: str
    splits: tuple[object, ...]


def days(count: int) -> Data:
    return Data("days", tuple(range(count)))


def test_each_day_is_judged_by_the_next() -> None:
    assert rounds(days(3), TrainConfig()) == [
        Round(0, 0, "day 0", (1,), 1),
        Round(1, 0, "day 1", (2,), 2),
    ]


def test_fewer_days_than_there_are() -> None:
    assert [part.split for part in rounds(days(5), TrainConfig(days=2))] == [0, 1]


def test_epochs_are_judged_by_the_validation_set_and_reported_on_the_test_set() -> None:
    data = Data("splits", ("train", "validation", "test"))
    assert rounds(data, TrainConfig(epochs=2)) == [
        Round(0, 0, "epoch 0", (1, 2), 1),
        Round(0, 1, "epoch 1", (1, 2), 1),
    ]


@pytest.mark.parametrize(
    ("data", "train", "message"),
    [
        (days(1), TrainConfig(), r"type data\.days=2"),
        (days(3), TrainConfig(epochs=2), r"type train\.epochs=1"),
        (days(3), TrainConfig(days=3), r"train\.days=3 is not possible with 3 days; type 1 to 2"),
        (days(3), TrainConfig(days=0), "type 1 to 2"),
    ],
)
def test_rounds_that_cannot_be_say_what_to_type(data: Data, train: TrainConfig, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        rounds(data, train)
