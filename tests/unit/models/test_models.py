"""The models against a naive reading of their formulas."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from gbactl.conf_catalogue import entries, option_files, options
from gbactl.config import ModelConfig
from gbactl.data.cache import prepare
from gbactl.data.dataset import Dataset, open_dataset
from gbactl.errors import ConfigError
from gbactl.models import _parameters, build, dense_size, row_width
from gbactl.models.base import ClickModel, Dice
from gbactl.models.dry_run import Findings, dry_run
from gbactl.models.flat_parameters import FlatModel
from tests.support import small_data

B, N, F = 5, 3, 4
TARGETS = (0, None, 0)  # fields 1 and 3 are histories of field 0, field 2 is another list
LENGTHS = [[0, 1, 2, 0, 3], [2, 0, 1, 0, 1]]  # of the samples' histories
Lists = list[list[Tensor]]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    lists = {"lists": 1, "list_length": 3, "history_length": 5, "cache": str(tmp_path_factory.mktemp("cache"))}
    return open_dataset(prepare({**small_data.options(600), **lists}))


def config(name: str = "deepfm", **given: Any) -> ModelConfig:
    common = {field.name for field in dataclasses.fields(ModelConfig)}
    options = {key: value for key, value in given.items() if key not in common}
    rest = {"dim": 2, "hidden": [6, 5], **{key: value for key, value in given.items() if key in common}}
    return ModelConfig(name=name, options=options, **rest)


def inputs(numeric: int = N, fields: int = F, width: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(7)
    return torch.randn(B, numeric, generator=draw), torch.randn(B, fields, width, generator=draw)


def histories(dim: int, joint: bool = False) -> list[tuple[Tensor, Tensor]]:
    """Rows and mask of fields 1 and 3; what stands in the padding must not matter."""
    draw = torch.Generator().manual_seed(9)
    chosen = [LENGTHS[0]] * 2 if joint else LENGTHS
    masks = [torch.arange(max(lengths)) < torch.tensor(lengths)[:, None] for lengths in chosen]
    return [(torch.randn(*mask.shape, dim, generator=draw).requires_grad_(), mask) for mask in masks]


def randomise(model: ClickModel) -> None:
    """Give a model random values and statistics, and let it evaluate."""
    draw = torch.Generator().manual_seed(8)
    for parameter in model.parameters():
        parameter.data.normal_(0, 0.7, generator=draw)
    for norm in model.eval().modules():
        if isinstance(norm, nn.BatchNorm1d) and norm.running_mean is not None and norm.running_var is not None:
            norm.running_mean.normal_(0, 0.7, generator=draw)
            norm.running_var.uniform_(0.5, 2, generator=draw)


# -- formulas of one sample, written from the papers with every sum in a loop: x [numeric], v [fields][dim] -----------


def affine(layer: Any, x: Any) -> Tensor:
    found = [sum((layer.weight[i, j] * x[j] for j in range(len(x))), torch.zeros(())) for i in range(len(layer.weight))]
    return torch.stack(found) + (0 if layer.bias is None else layer.bias)


def mlp(layers: Any, x: Any) -> Tensor:
    for layer in layers:
        x = affine(layer, x) if isinstance(layer, nn.Linear) else activated(layer, x)
    return x  # type: ignore[no-any-return]


def activated(layer: Any, x: Tensor) -> Tensor:
    if isinstance(layer, Dice):
        p = 1 / (1 + ((layer.norm.running_mean - x) / (layer.norm.running_var + 1e-8).sqrt()).exp())
        return p * x + (1 - p) * layer.slope * x
    return x.clamp(min=0) + (layer.weight * x.clamp(max=0) if isinstance(layer, nn.PReLU) else 0)


def normalised(x: Tensor) -> Tensor:
    return (x - x.mean()) / (((x - x.mean()) ** 2).mean() + 1e-5).sqrt()


def of_all_fields(m: Any, x: Tensor, v: list[Tensor]) -> list[Tensor]:
    return [x[j] * m.numeric_vectors[j] for j in range(len(x))] + v


def wide_deep(m: Any, x: Tensor, v: list[Tensor]) -> Tensor:
    return mlp(m.mlp, torch.cat([x, *v]))[0]


def deepfm(m: Any, x: Tensor, v: list[Tensor]) -> Tensor:
    terms = of_all_fields(m, x, v)
    return wide_deep(m, x, v) + sum(a @ b for i, a in enumerate(terms) for b in terms[i + 1 :])


def dcnv2(m: Any, x: Tensor, v: list[Tensor]) -> Tensor:
    start = torch.cat([x if m.bottom is None or not len(x) else mlp(m.bottom, x), *v])
    end = start
    for layer in m.crosses:
        matrix = layer.up.weight if layer.down is None else layer.up.weight @ layer.down.weight
        end = start * (matrix @ end + layer.up.bias) + end
    return mlp(m.mlp, end)[0] if m.last is None else mlp(m.mlp, start)[0] + affine(m.last, end)[0]


def dlrm(m: Any, x: Tensor, v: list[Tensor]) -> Tensor:
    bottom = [mlp(m.bottom, x)] if len(x) else []
    v = bottom + v
    products = [(a @ b).reshape(1) for i, a in enumerate(v) for b in v[i + 1 :]]
    return mlp(m.mlp, torch.cat(v if m.pairs is None else bottom + products))[0]


def xdeepfm(m: Any, x: Tensor, v: list[Tensor]) -> Tensor:
    maps = start = of_all_fields(m, x, v)
    sums = []
    for layer in m.layers:
        pairs = [a * b for a in maps for b in start]
        maps = [
            sum(w * z for w, z in zip(row, pairs, strict=True)) + b
            for row, b in zip(layer.weight, layer.bias, strict=True)
        ]
        sums += [each.sum() for each in maps]
    return wide_deep(m, x, v) + affine(m.last, sums)[0]


def autoint(m: Any, x: Tensor, v: list[Tensor]) -> Tensor:
    terms = of_all_fields(m, x, v)
    for layer in m.layers:
        parts = [
            [each.weight.chunk(layer.heads)[h] for each in (layer.query, layer.key, layer.value)]
            for h in range(layer.heads)
        ]
        found = []
        for term in terms:
            heads = []
            for query, key, value in parts:
                size = len(query) ** 0.5 if layer.factor != 1 else 1
                e = torch.stack([((query @ term) @ (key @ other) / size).exp() for other in terms])
                heads.append(sum(a * (value @ other) for a, other in zip(e / e.sum(), terms, strict=True)))
            sums = torch.cat(heads) + (term if layer.residual is None else affine(layer.residual, term))
            found.append(
                (sums if layer.norm is None else normalised(sums) * layer.norm.weight + layer.norm.bias).relu()
            )
        terms = found
    return affine(m.last, torch.cat(terms))[0] + (0 if m.mlp is None else wide_deep(m, x, v))


def masknet(m: Any, x: Tensor, v: list[Tensor]) -> Tensor:
    terms = of_all_fields(m, x, v)
    whole, outs = torch.cat(terms), []
    if m.scale is not None:
        terms = [normalised(each) * m.scale[i] + m.shift[i] for i, each in enumerate(terms)]
    into = torch.cat(terms)
    for block in m.blocks:
        out = affine(block.linear, mlp(block.mask, whole) * into)
        outs.append((out if block.norm is None else normalised(out) * block.norm.weight + block.norm.bias).relu())
        into = outs[-1] if m.serial else into
    return mlp(m.mlp, into if m.serial else torch.cat(outs))[0]


def finalmlp(m: Any, x: Tensor, v: list[Tensor]) -> Tensor:
    y, whole = [], torch.cat(of_all_fields(m, x, v))
    for i in range(2):
        gate = m.gates[i] if len(m.gates) else None
        context = None if gate is None else torch.cat([v[f] for f in gate.context] or [gate.start[0]])
        y.append(mlp(m.mlps[i], whole if gate is None else whole * 2 / (1 + (-mlp(gate.mlp, context)).exp())))
    heads, a, b = m.bilinear.shape
    joined = sum(
        y[0][h * a + i] * m.bilinear[h, i, j] * y[1][h * b + j]
        for h in range(heads)
        for i in range(a)
        for j in range(b)
    )
    return affine(m.last[0], y[0])[0] + affine(m.last[1], y[1])[0] + joined


def with_interests(m: Any, x: Tensor, v: list[Tensor], lists: Lists, interest: Any) -> Tensor:
    if len(m.interests) == 1:
        items = [torch.cat(pair) for pair in zip(*lists, strict=True)]
        found = interest(m.interests[0], torch.cat([v[0], v[0]]), items)
        return wide_deep(m, x, [v[0], found[:2], v[2], found[2:]])
    found = [interest(unit, v[0], history) for unit, history in zip(m.interests, lists, strict=True)]
    return wide_deep(m, x, [v[0], found[0], v[2], found[1]])


def weighted(weights: list[Tensor], items: list[Tensor], width: int) -> Tensor:
    return sum((a * e for a, e in zip(weights, items, strict=True)), torch.zeros(width))


def shares(scores: list[Tensor]) -> list[Tensor]:
    return [score.exp() / sum(each.exp() for each in scores) for score in scores]


def din(m: Any, x: Tensor, v: list[Tensor], lists: Lists) -> Tensor:
    def interest(unit: Any, target: Tensor, history: list[Tensor]) -> Tensor:
        a = [mlp(unit.mlp, torch.cat([target, e, target - e, target * e]))[0] for e in history]
        return weighted(shares([each / len(target) ** 0.5 for each in a]) if unit.softmax else a, history, len(target))

    return with_interests(m, x, v, lists, interest)


def gru(layer: Any, inputs: list[Tensor], attention: list[Any]) -> list[Tensor]:
    width = layer.states.in_features
    h, found = torch.zeros(width), []
    for e, a in zip(inputs, attention, strict=True):
        given, recurrent = affine(layer.inputs, e), affine(layer.states, h)
        u, r = (1 / (1 + (-given[i : i + width] - recurrent[i : i + width]).exp()) for i in (0, width))
        new = (given[2 * width :] + r * recurrent[2 * width :]).tanh()
        h = (1 - a * u) * h + a * u * new
        found.append(h)
    return found


def dien(m: Any, x: Tensor, v: list[Tensor], lists: Lists) -> Tensor:
    def interest(unit: Any, target: Tensor, history: list[Tensor]) -> Tensor:
        states = gru(unit.extraction, history, [1] * len(history))
        attention = shares([h @ affine(unit.attention, target) for h in states])
        return [torch.zeros(len(target)), *gru(unit.evolution, states, attention)][-1]

    return with_interests(m, x, v, lists, interest)


def youtube_dnn(m: Any, x: Tensor, v: list[Tensor]) -> Tensor:
    powers = [x**2 * x.sign(), x.abs() ** 0.5 * x.sign()] if m.powers else []
    return mlp(m.mlp, torch.cat([x, *powers, *v]))[0]


OF_HISTORIES = {"din": din, "dien": dien}
FORMULAS: dict[str, Any] = {
    **{
        each.__name__: each
        for each in (wide_deep, deepfm, dcnv2, dlrm, xdeepfm, autoint, masknet, finalmlp, youtube_dnn)
    },
    **OF_HISTORIES,
}
CASES: list[tuple[str, dict[str, Any]]] = [
    *((name, {"hidden": hidden}) for name in ("wide_deep", "deepfm") for hidden in ([], [6], [6, 5])),
    ("deepfm", {"first_order": False}),
    ("dcnv2", {}),
    ("dcnv2", {"layers": 2, "rank": 2, "structure": "parallel", "bottom": [3]}),
    ("dlrm", {"bottom": [3]}),
    ("dlrm", {"interaction": "cat", "first_order": False}),
    ("xdeepfm", {"maps": [3, 2]}),
    ("autoint", {"layers": 2, "heads": 2, "attention_dim": 4}),
    (
        "autoint",
        {"attention_dim": 6, "heads": 3, "scale": True, "layer_norm": True, "hidden": [], "first_order": False},
    ),
    ("masknet", {"blocks": [3, 4]}),
    ("masknet", {"blocks": [4, 3], "structure": "serial", "reduction": 0.5, "vector_norm": False, "block_norm": False}),
    ("finalmlp", {"hidden2": [4, 10], "heads": 5, "gates": False}),
    ("finalmlp", {"gate_hidden": [3], "context1": [1, 0], "first_order": False}),
    ("finalmlp", {"gate_hidden": []}),
    ("youtube_dnn", {}),
    ("youtube_dnn", {"powers": False, "first_order": False}),
    ("din", {"attention": [4, 3]}),
    ("din", {"attention": [3], "softmax": True, "activation": "prelu", "first_order": False}),
    ("din", {"attention": [3], "softmax": True, "joint": True}),
    ("dien", {}),
    ("dien", {"activation": "relu", "first_order": False, "joint": True}),
]
case = pytest.mark.parametrize(("name", "given"), CASES, ids=str)


def test_every_model_has_a_case() -> None:
    assert {name for name, _ in CASES} == set(FORMULAS) == set(options("model"))


@pytest.mark.quick(24)
@case
@pytest.mark.parametrize(("numeric", "fields"), [(0, F), (N, F), (N, 0)])
def test_logits_and_gradients_equal_the_naive_formula(
    name: str, given: dict[str, Any], numeric: int, fields: int
) -> None:
    """The formulas are written from the papers; test_other_libraries.py compares layers with those of others."""
    if not fields and "context1" in given:
        pytest.skip("no context without fields")
    if not fields and name in OF_HISTORIES:
        pytest.skip("no history without fields")
    cfg = config(name, **given)
    model = build(cfg, numeric, fields, 1, TARGETS if fields else ())
    randomise(model)
    raw = histories(row_width(cfg), given.get("joint", False)) if name in OF_HISTORIES else []
    x, rows = inputs(numeric, fields, row_width(cfg))
    rows.requires_grad_()

    def logit(x: Tensor, rows: Tensor, lists: Lists) -> Tensor:
        wide = model.bias[0]
        if row_width(cfg) > cfg.dim:
            weights = [] if model.numeric_weight is None else model.numeric_weight
            wide = wide + sum(row[2] for row in rows) + sum(a * w for a, w in zip(x, weights, strict=True))
        return wide + FORMULAS[name](model, x, [row[:2] for row in rows], *([lists] if lists else []))

    lists = [[[row[:2] for row in each[b, : int(mask[b].sum())]] for each, mask in raw] for b in range(B)]
    wanted = torch.stack([logit(x[b], rows[b], lists[b]) for b in range(B)])
    got = model(x, rows, raw) if raw else model(x, rows)
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)
    leaves = [*([rows] if fields else []), *(each for each, _ in raw), *model.parameters()]
    weights = torch.arange(1.0, B + 1)
    for a, b in zip(
        torch.autograd.grad(got @ weights, leaves), torch.autograd.grad(wanted @ weights, leaves), strict=True
    ):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3)


@case
@pytest.mark.parametrize("batch_norm", [False, True])
@pytest.mark.parametrize("numeric", [0, N])
def test_the_size_is_counted_without_memory_for_the_model(
    name: str, given: dict[str, Any], numeric: int, batch_norm: bool
) -> None:
    cfg = config(name, batch_norm=batch_norm, **given)
    assert dense_size(cfg, numeric, F, TARGETS) == FlatModel(build(cfg, numeric, F, 1, TARGETS)).size


@case
def test_every_model_keeps_the_contract(name: str, given: dict[str, Any], dataset: Dataset) -> None:
    """As models of users have to: a gradient for each parameter, a batch of one, the same bits from the same seed."""
    cfg = config(name, dropout=0.2, batch_norm=True, **given)
    assert dry_run(cfg, dataset, 0, "fp32") == dry_run(cfg, dataset, 0, "bf16") == Findings()


@pytest.mark.parametrize("name", options("model"))
def test_options_are_the_keys_of_the_file(name: str) -> None:
    common = {field.name for field in dataclasses.fields(ModelConfig)}
    read = {key: entry.value for key, entry in entries(option_files("model")[name]).items() if key not in common}
    assert "dim" in entries(option_files("model")[name])
    first, second = (build(ModelConfig(name, dim=4, hidden=[8], options=own), 2, 3, 1, (0,)) for own in ({}, read))
    for a, b in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(a, b), "a default differs from that of the file"
    kind = type(first)
    own = {each.name for each in _parameters(kind)} - set(inspect.signature(ClickModel).parameters)
    assert own == set(read)


@pytest.mark.parametrize(
    ("name", "given", "told"),
    [
        ("dcnv2", {"layers": 0}, r"^model\.layers=0 is not a whole number from 1 to \d+; type for instance .*=3\.$"),
        ("dcnv2", {"rank": "full"}, r"model\.rank='full' is not a whole number from 1 to \d+ or null"),
        ("dcnv2", {"structure": "serial"}, r"model\.structure=serial is not known; .* one of: stacked, parallel\."),
        ("dcnv2", {"layer": 2}, r"model=dcnv2 has no option layer\. Did you mean layers\?"),
        ("dlrm", {"interaction": "sum"}, r"model\.interaction=sum is not known; type .* one of: dot, cat\."),
        ("xdeepfm", {"maps": []}, r"model\.maps=\[\] has no layer"),
        (
            "autoint",
            {"heads": 3},
            r"model\.attention_dim=32 cannot be shared by model\.heads=3; type a multiple of 3\.",
        ),
        ("masknet", {"reduction": 0}, r"model\.reduction=0 is not a number above 0"),
        ("masknet", {"blocks": []}, r"model\.blocks=\[\] has no block"),
        ("finalmlp", {"heads": 4}, r"model\.hidden=\[6, 5\] cannot end in model\.heads=4 parts"),
        (
            "dien",
            {},
            r"^model=dien needs a history: .*; with data=synthetic type for instance data\.history_length=20\.$",
        ),
        ("din", {"activation": "tanh"}, r"model\.activation=tanh is not known; type .* one of: dice, prelu, relu\."),
        ("finalmlp", {"context2": [0, 4]}, r"model\.context2=\[0, 4\] names fields .*from 0 to 3\."),
    ],
)
def test_an_option_that_cannot_be_is_told(name: str, given: dict[str, Any], told: str) -> None:
    for built in (build, dense_size):
        with pytest.raises(ConfigError, match=told):
            built(config(name, **given), N, F, *([0] if built is build else []))  # type: ignore[operator]


@pytest.mark.parametrize("name", OF_HISTORIES)
def test_padding_changes_nothing_in_training(name: str) -> None:
    """Nor do the statistics of Dice count it; a batch whose histories are empty has gradients, too."""
    model = build(config(name, first_order=False), N, F, 1, TARGETS)
    randomise(model)
    x, rows = inputs(width=2)
    model.train()
    found = []
    for more in (0, 3):
        raw = [
            (nn.functional.pad(each, (0, 0, 0, more)), nn.functional.pad(mask, (0, more)))
            for each, mask in histories(2)
        ]
        logits = model(x, rows, raw)
        found.append([logits, *torch.autograd.grad(logits @ torch.arange(1.0, B + 1), list(model.parameters()))])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
    empty = [(torch.zeros(B, 1, 2), torch.zeros(B, 1, dtype=torch.bool))] * 2
    for each in torch.autograd.grad(model(x, rows, empty).sum(), list(model.parameters())):
        assert torch.isfinite(each).all()


def test_joint_histories_of_different_lengths_are_told() -> None:
    model = build(config("din", first_order=False, joint=True), N, F, 1, TARGETS)
    with pytest.raises(ConfigError, match=r"model\.joint=true needs histories of the same lengths"):
        model(*inputs(width=2), histories(2))


def test_the_start_depends_on_the_seed_alone_and_leaves_the_global_rng_alone() -> None:
    torch.manual_seed(1)
    first = build(config(), N, F, seed=3)
    torch.manual_seed(2)
    before = torch.get_rng_state()
    second, third = build(config(), N, F, seed=3), build(config(), N, F, seed=4)
    assert torch.equal(before, torch.get_rng_state())
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    assert not torch.equal(first.mlp[0].weight, third.mlp[0].weight)


def test_a_row_holds_the_vector_and_one_weight() -> None:
    assert row_width(ModelConfig(dim=16)) == 17


def test_an_unknown_name_lists_what_there_is() -> None:
    with pytest.raises(ConfigError, match=r"model\.name=nope") as caught:
        build(config("nope"), N, F, seed=0)
    assert "dcnv2, deepfm, " in str(caught.value)


def test_no_parameter_is_empty_without_numeric_fields() -> None:
    model = build(config(), 0, F, seed=0)
    assert all(p.numel() for p in model.parameters())


def test_dropout_keeps_the_expected_share_and_scales_it() -> None:
    from gbactl.models.base import Dropout

    layer = Dropout(0.25, torch.Generator().manual_seed(0))
    out = layer(torch.ones(200, 200)).numpy()
    assert set(np.unique(out)) == {np.float32(0), np.float32(1 / 0.75)}
    assert abs((out > 0).mean() - 0.75) < 0.01
    assert torch.equal(layer.eval()(torch.ones(3)), torch.ones(3))
