"""Layers of the models against those of FuxiCTR, DeepCTR-Torch, TorchRec, TorchEasyRec and Torch-RecHub.

They get the same weights. Each test is skipped where its library is missing; .ci/run installs them. Wide & deep is an
MLP. No package on PyPI has YouTube's ranking network in torch: the powers of its numeric features are compared with the
formula alone. test_models.py has the formulas of all models, written from the papers. The GRU is compared with torch's.
"""

from __future__ import annotations

import importlib.util
import sys
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from gbactl.config import ModelConfig
from gbactl.data.dataset import Jagged, ListField, Schema
from gbactl.kernels import load
from gbactl.models import build
from gbactl.models.pooling import ListPooling

B, F, DIM = 6, 4, 4


def model(name: str, fields: int = F, batch_norm: bool = False, **options: Any) -> Any:
    cfg = ModelConfig(name, dim=DIM, hidden=[8, 5], batch_norm=batch_norm, first_order=False, options=options)
    return build(cfg, 0, fields, 3, (0,) if name in ("din", "dien") else ())


def vectors() -> Tensor:
    return torch.randn(B, F, DIM, generator=torch.Generator().manual_seed(5)).requires_grad_()


def assert_same(ours: nn.Module, theirs: nn.Module, pairs: list[tuple[Tensor, Any]], found: Any, wanted: Any) -> None:
    """Copy weights, then compare outputs and gradients; pairs: our parameter, and theirs or a view of its shape."""
    draw = torch.Generator().manual_seed(6)
    for own, other in pairs:
        own.data.normal_(0, 0.5, generator=draw)
        other.data.copy_(own.data.reshape(other.shape))
    x, y = vectors(), vectors()
    a, b = found(x).reshape(B, -1), wanted(y).reshape(B, -1)
    torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    weights = torch.linspace(1, 2, a.numel()).reshape(a.shape)
    one = torch.autograd.grad((a * weights).sum(), [x, *(own for own, _ in pairs)])
    two = torch.autograd.grad((b * weights).sum(), [y, *(other for _, other in pairs)])
    for of_own, of_other in zip(one, two, strict=True):
        torch.testing.assert_close(of_own.reshape(of_other.shape), of_other, rtol=1e-3, atol=1e-4)


def deepctr(name: str) -> Any:
    """Import a module of DeepCTR-Torch, whose thread that asks the network for a newer version gets no answer."""
    before = set(threading.enumerate())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("requests.get", None)
        found = pytest.importorskip(f"deepctr_torch.{name}", exc_type=ImportError)
        for thread in set(threading.enumerate()) - before:
            thread.join()
    return found


def loaded_alone(package: str, file: str) -> Any:
    """Load a file of a package without the package, which needs more than is installed."""
    found = importlib.util.find_spec(package)
    if found is None or found.origin is None:
        pytest.skip(f"{package} is not installed")
    spec = importlib.util.spec_from_file_location(Path(file).stem, Path(found.origin).parent / file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def chained(layers: Any, start: Tensor) -> Tensor:
    x = start
    for layer in layers:
        x = layer(start, x)
    return x


@pytest.mark.parametrize(("name", "output"), [("deepfm", "product_sum"), ("dlrm", "inner_product")])
def test_products_of_pairs_are_those_of_fuxictr(name: str, output: str) -> None:
    layers = pytest.importorskip("fuxictr.pytorch.layers", exc_type=ImportError)
    ours = model(name)
    ours.mlp = nn.Identity()  # above the products of DLRM
    theirs = layers.InnerProductInteraction(F, output)
    assert_same(ours, theirs, [], lambda v: ours.terms(torch.empty(B, 0), v)[-1], theirs)


def test_crosses_are_those_of_fuxictr() -> None:
    layers = pytest.importorskip("fuxictr.pytorch.layers", exc_type=ImportError)
    ours, theirs = model("dcnv2", layers=3), layers.CrossNetV2(F * DIM, 3)
    pairs = [
        pair for own, other in zip(ours.crosses, theirs.cross_layers, strict=True)
        for pair in ((own.up.weight, other.weight), (own.up.bias, other.bias))
    ]  # fmt: skip
    assert_same(ours, theirs, pairs, lambda v: chained(ours.crosses, v.flatten(1)), lambda v: theirs(v.flatten(1)))


def test_low_rank_crosses_are_those_of_torchrec() -> None:
    """The package itself needs fbgemm for the installed version of torch."""
    crossnet = loaded_alone("torchrec", "modules/crossnet.py")
    ours, theirs = model("dcnv2", layers=2, rank=3), crossnet.LowRankCrossNet(F * DIM, 2, 3)
    pairs = [
        pair for i, own in enumerate(ours.crosses)
        for pair in (
            (own.down.weight, theirs.V_kernels[i]), (own.up.weight, theirs.W_kernels[i]), (own.up.bias, theirs.bias[i]),
        )
    ]  # fmt: skip
    assert_same(ours, theirs, pairs, lambda v: chained(ours.crosses, v.flatten(1)), lambda v: theirs(v.flatten(1)))


def test_the_interaction_network_is_that_of_fuxictr() -> None:
    """Their products are ordered (vector, map), ours (map, vector)."""
    layers = pytest.importorskip("fuxictr.pytorch.layers", exc_type=ImportError)
    ours, theirs = model("xdeepfm", maps=[3, 2]), layers.CompressedInteractionNet(F, [3, 2])
    convolutions = list(theirs.cin_layer.values())
    nn.init.zeros_(theirs.fc.bias)
    draw = torch.Generator().manual_seed(6)
    for own, other in zip(ours.layers, convolutions, strict=True):
        own.weight.data.normal_(0, 0.5, generator=draw)
        turned = own.weight.data.unflatten(1, (-1, F)).transpose(1, 2).reshape(other.weight.shape)
        other.weight.data.copy_(turned)
    rest = [(own.bias, other.bias) for own, other in zip(ours.layers, convolutions, strict=True)]
    rest.append((ours.last.weight, theirs.fc.weight))
    assert_same(ours, theirs, rest, lambda v: ours.terms(torch.empty(B, 0), v)[1], theirs)


def test_the_interaction_network_is_that_of_deepctr() -> None:
    layers = deepctr("layers")
    ours = model("xdeepfm", maps=[3, 2])
    theirs = layers.CIN(F, (3, 2), activation="linear", split_half=False)
    pairs = [
        pair for own, other in zip(ours.layers, theirs.conv1ds, strict=True)
        for pair in ((own.weight, other.weight), (own.bias, other.bias))
    ]  # fmt: skip
    assert_same(ours, theirs, pairs, lambda v: ours.terms(torch.empty(B, 0), v)[1], lambda v: ours.last(theirs(v)))


@pytest.mark.parametrize("scale", [False, True])
def test_attention_is_that_of_deepctr(scale: bool) -> None:
    """Theirs always has a matrix for the residual: the identity here."""
    layers = deepctr("layers")
    [ours] = model("autoint", layers=1, heads=2, attention_dim=DIM, scale=scale).layers
    theirs = layers.InteractingLayer(DIM, head_num=2, scaling=scale)
    theirs.W_Res.data = torch.eye(DIM)
    for own, other in zip((ours.query, ours.key, ours.value), ("W_Query", "W_key", "W_Value"), strict=True):
        nn.init.normal_(own.weight, 0, 0.5, generator=torch.Generator().manual_seed(len(other)))
        setattr(theirs, other, nn.Parameter(own.weight.data.t().clone()))
    assert_same(ours, theirs, [], ours, theirs)


@pytest.mark.parametrize(("activation", "longest"), [("ReLU", [4, 0, 1, 3, 2, 4]), ("dice", [F] * B)])
def test_the_activation_unit_is_that_of_fuxictr(activation: str, longest: list[int]) -> None:
    """Their Dice counts the padding too, so histories are full with it."""
    layers = pytest.importorskip("fuxictr.pytorch.layers", exc_type=ImportError)
    [ours] = model("din", attention=[6, 5], activation=activation.lower()).interests
    theirs = layers.DIN_Attention(DIM, [6, 5], hidden_activations=activation)
    mask = torch.arange(F) < torch.tensor(longest)[:, None]
    pairs = list(zip(ours.parameters(), theirs.parameters(), strict=True))
    assert_same(ours, theirs, pairs, lambda v: ours(v[:, 0], v, mask), lambda v: theirs(v[:, 0], v, mask))


def gates(order: str) -> Tensor:
    """Positions of our gates u, r, c in the order of another library."""
    return torch.cat([torch.arange(DIM) + DIM * "urc".index(gate) for gate in order])


def test_attentional_updates_are_those_of_deepctr() -> None:
    sequence = deepctr("layers.sequence")
    ours, theirs = model("dien").interests[0].evolution, sequence.AUGRUCell(DIM, DIM)
    attention = torch.rand(B, F, generator=torch.Generator().manual_seed(7))
    nn.init.normal_(ours.inputs.bias, generator=torch.Generator().manual_seed(8))
    for own, name in (
        (ours.inputs.weight, "weight_ih"),
        (ours.states.weight, "weight_hh"),
        (ours.inputs.bias, "bias_ih"),
    ):
        setattr(theirs, name, nn.Parameter(own.detach()[gates("ruc")].clone()))

    def states(v: Tensor) -> Tensor:
        found = [torch.zeros(B, DIM)]
        for step in range(F):
            found.append(theirs(v[:, step], found[-1], attention[:, step]))
        return torch.stack(found[1:], 1)

    assert_same(ours, theirs, [], lambda v: ours(v, attention), states)


def test_the_gru_is_that_of_torch() -> None:
    """Their update gate is 1 minus ours: the sigmoid of the opposite."""
    ours, theirs = model("dien").interests[0].extraction, nn.GRU(DIM, DIM, batch_first=True)
    nn.init.normal_(ours.inputs.bias, generator=torch.Generator().manual_seed(8))
    signs = torch.ones(3 * DIM).index_fill(0, torch.arange(DIM, 2 * DIM), -1)
    for own, other in (
        (ours.inputs.weight, theirs.weight_ih_l0), (ours.states.weight, theirs.weight_hh_l0),
        (ours.inputs.bias, theirs.bias_ih_l0), (None, theirs.bias_hh_l0),
    ):  # fmt: skip
        turned = torch.zeros(3 * DIM) if own is None else own.detach()[gates("ruc")]
        other.data.copy_((turned.T * signs).T if turned.dim() == 2 else turned * signs)
    assert_same(ours, theirs, [], lambda v: ours(v, torch.ones(B, F)), lambda v: theirs(v)[0])


@pytest.mark.parametrize("structure", ["parallel", "serial"])
@pytest.mark.parametrize("fields", [1, F])
def test_mask_blocks_are_those_of_torcheasyrec(structure: str, fields: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Theirs normalises the vectors of all fields together, the paper's and ours each by itself: one field, or none.

    Their blocks add a bias before the layer norm, the paper's and ours do not: 0 here.
    """
    stub = ModuleType("mlp")
    stub.MLP = None  # type: ignore[attr-defined]  # of a layer above the blocks, which is not made
    monkeypatch.setitem(sys.modules, "tzrec.modules.mlp", stub)
    masknet = loaded_alone("tzrec", "modules/masknet.py")
    ours = model("masknet", fields, blocks=[5, 5, 5], structure=structure, reduction=1.5, vector_norm=fields == 1)
    ours.mlp = nn.Identity()  # above the blocks
    block = {"hidden_dim": 5, "reduction_ratio": 1.5}
    theirs = masknet.MaskNetModule(fields * DIM, 3, block, use_parallel=structure == "parallel")
    pairs = [(ours.scale, theirs.ln_emb.weight), (ours.shift, theirs.ln_emb.bias)]
    if fields > 1:
        theirs.ln_emb, pairs = nn.Identity(), []
    for own, other in zip(ours.blocks, theirs.mask_blocks, strict=True):
        linear, norm, _ = other.ffn
        nn.init.zeros_(linear.bias)
        pairs += zip(own.mask.parameters(), other.mask_generator.parameters(), strict=True)
        pairs += [(own.linear.weight, linear.weight), (own.norm.weight, norm.weight), (own.norm.bias, norm.bias)]
    assert_same(
        ours, theirs, pairs,
        lambda v: ours.terms(torch.empty(B, 0), v[:, :fields])[0], lambda v: theirs(v[:, :fields].flatten(1)),
    )  # fmt: skip


class Chosen(nn.Module):
    """Vectors of some fields of a sample, in the place of FuxiCTR's further embeddings of these fields."""

    def __init__(self, features: None, dim: int, required_feature_columns: list[int]) -> None:
        super().__init__()
        self.fields = required_feature_columns

    def forward(self, v: Tensor) -> Tensor:
        return v[:, self.fields]


def test_gated_streams_and_their_bilinear_form_are_those_of_fuxictr(monkeypatch: pytest.MonkeyPatch) -> None:
    """Theirs has two biases in the logit, ours one. Its gates look up vectors of their own, ours get the MLPs'."""
    zoo = pytest.importorskip("model_zoo.LongCTR.FinalMLP.FinalMLP", exc_type=ImportError)
    monkeypatch.setattr(zoo, "FeatureEmbedding", Chosen)
    ours = model("finalmlp", hidden2=[6, 10], heads=5, gate_hidden=[3], context1=[2, 0])
    gates = zoo.FeatureSelection(None, F * DIM, DIM, [3], [2, 0], [])
    streams = [zoo.MLP_Block(F * DIM, hidden_units=hidden) for hidden in ([8, 5], [6, 10])]
    theirs = zoo.InteractionAggregation(5, 10, num_heads=5)
    nn.init.zeros_(theirs.w_y.bias)
    pairs = [
        (ours.bias, theirs.w_x.bias), (ours.last[0].weight, theirs.w_x.weight),
        (ours.last[1].weight, theirs.w_y.weight), (ours.bilinear, theirs.w_xy),
        (ours.gates[1].start, gates.fs2_ctx_bias),
    ]  # fmt: skip
    for own, other in zip((*ours.mlps, *(gate.mlp for gate in ours.gates)), (*streams, gates.fs1_gate, gates.fs2_gate),
                          strict=True):  # fmt: skip
        pairs += zip(own.parameters(), other.parameters(), strict=True)

    def logits(v: Tensor) -> Any:
        return theirs(*(stream(x) for stream, x in zip(streams, gates(v, v.flatten(1)), strict=True)))

    assert_same(ours, theirs, pairs, lambda v: ours(torch.empty(B, 0), v), logits)


class Pooled(torch.autograd.Function):
    """Pooling of the lists of a batch, from the rows of their values to [samples, lists, dim]."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, pooling: ListPooling) -> Tensor:
        ctx.pooling, ctx.like = pooling, rows
        return torch.from_numpy(pooling.pool(rows.numpy().copy()))

    @staticmethod
    def backward(ctx: Any, *gradient: Tensor) -> tuple[Tensor, None]:
        out = np.empty_like(ctx.like.numpy())
        ctx.pooling.unpool(gradient[0].numpy(), out)
        return torch.from_numpy(out), None


def test_averaged_histories_under_an_mlp_are_those_of_torch_rechub() -> None:
    """Theirs is the network that generates candidates: its last hidden layer, normalised, is the vector of a user.

    The ranking network has the same input, but for the numeric features, and the same hidden layers.
    """
    matching = pytest.importorskip("torch_rechub.models.matching", exc_type=ImportError)
    features = pytest.importorskip("torch_rechub.basic.features", exc_type=ImportError)
    longest = torch.tensor([3, 0, 1, 2, 3, 1])
    mask = torch.arange(F - 1) < longest[:, None]
    rows = torch.arange(1, 1 + B * F).reshape(B, F)  # of a table whose row 0 is the padding
    inputs = [
        features.SparseFeature("item", 1 + B * F, DIM),
        features.SequenceFeature("history", 1 + B * F, DIM, pooling="mean", shared_with="item", padding_idx=0),
    ]
    theirs = matching.YoutubeDNN(inputs, [], [], {"dims": [8, 5]})
    theirs.mode = "user"
    ids = {"item": rows[:, 0], "history": rows[:, 1:] * mask}

    def of_user(v: Tensor) -> Any:
        table = torch.cat([torch.zeros(1, DIM), v.flatten(0, 1)])
        return torch.func.functional_call(theirs, {"embedding.embed_dict.item.weight": table}, (ids,))

    ours = model("youtube_dnn", 2, batch_norm=True)
    ours.mlp[-1] = nn.Identity()
    offsets = np.concatenate([[0], np.cumsum(longest.numpy())])
    jagged = Jagged(1, offsets, (rows[:, 1:][mask]).to(torch.int32).numpy(), None)
    schema = Schema(0, (1 + B * F, 1 + B * F), (0, 0), (ListField(F, "mean"),))
    pooling = ListPooling(load("twin"), schema, jagged)

    def hidden(v: Tensor) -> Tensor:
        averages: Any = Pooled.apply(v[:, 1:][mask], pooling)
        [last] = ours.terms(torch.empty(B, 0), torch.cat([v[:, :1], averages], 1))
        return nn.functional.normalize(last)

    pairs = list(zip(ours.mlp.parameters(), theirs.user_mlp.parameters(), strict=True))
    assert_same(ours, theirs, pairs, hidden, of_user)
