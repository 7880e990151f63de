"""Layers of the models against those of FuxiCTR, DeepCTR-Torch and TorchRec, with the same weights.

Each test is skipped where its library is missing; .ci/run installs them. MaskNet and FinalMLP are in none of these
packages, and wide & deep and YouTube's network are MLPs: test_models.py has the formulas of all models, written from
the papers. The GRU is compared with torch's.
"""

from __future__ import annotations

import importlib.util
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gbactl.config import ModelConfig
from gbactl.models import build

B, F, DIM = 6, 4, 4


def model(name: str, **options: Any) -> Any:
    cfg = ModelConfig(name, dim=DIM, hidden=[8, 5], first_order=False, options=options)
    return build(cfg, 0, F, 3, (0,) if name in ("din", "dien") else ())


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
    """Its file of crosses is loaded alone, as the package needs fbgemm for the installed version of torch."""
    package = importlib.util.find_spec("torchrec")
    if package is None or package.origin is None:
        pytest.skip("torchrec is not installed")
    spec = importlib.util.spec_from_file_location("crossnet", Path(package.origin).parent / "modules" / "crossnet.py")
    assert spec is not None and spec.loader is not None
    crossnet = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(crossnet)
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
