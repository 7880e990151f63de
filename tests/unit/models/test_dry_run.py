"""Models of one's own: the contract, told in a sentence before training, and what can be replayed."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from gbactl.config import ModelConfig
from gbactl.data.cache import prepare
from gbactl.data.dataset import Batch, Dataset, Schema, Split, open_dataset
from gbactl.errors import ConfigError, GbactlError
from gbactl.models import build, dense_size, row_width
from gbactl.models.dry_run import Findings, dry_run
from gbactl.models.gradient_computer import GradientComputer
from tests.support import small_data


class Plain(nn.Module):
    """Logistic regression over everything, with what a subclass does to its logits."""

    def __init__(self, numeric: int, fields: int, dim: int, scale: float = 1.0) -> None:
        super().__init__()
        self.last, self.scale = nn.Linear(numeric + fields * dim, 1), scale

    def forward(self, numeric: Tensor, fields: Tensor) -> Tensor:
        return self.end(self.last(torch.cat([numeric, fields.flatten(1)], 1)).squeeze(1) * self.scale)

    def end(self, logits: Tensor) -> Tensor:
        return logits


def kind(end: Any = None, init: Any = None) -> type[Plain]:
    class Made(Plain):
        def __init__(self, *arguments: Any, **named: Any) -> None:
            super().__init__(*arguments, **named)
            if init is not None:
                init(self)

        def end(self, logits: Tensor) -> Tensor:
            return logits if end is None else end(self, logits)  # type: ignore[no-any-return]

    Made.__init__.__wrapped__ = Plain.__init__  # type: ignore[attr-defined]
    return Made


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return open_dataset(small_data.prepared(Path(tmp_path_factory.mktemp("cache")), 600))


@pytest.fixture
def tried(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Tries a class with options."""

    def run(made: type[nn.Module], dataset: Dataset = dataset, **options: Any) -> Findings:
        module = ModuleType("made_here")
        module.Made = made  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "made_here", module)
        return dry_run(ModelConfig("made", dim=4, target="made_here.Made", options=options), dataset, 0, "fp32")

    return run


def test_a_model_that_keeps_the_contract(tried: Any) -> None:
    assert tried(Plain) == tried(Plain, scale=2.0) == Findings()
    assert tried(kind(init=lambda model: model.register_buffer("constant", torch.ones(3)))) == Findings()
    assert tried(kind(lambda model, logits: nn.functional.dropout(logits, 0.5, model.training))) == Findings()


def test_a_model_needs_no_rows_where_the_data_have_no_fields(tried: Any, dataset: Dataset) -> None:
    whole = dataset.splits[0].whole
    split = Split("day0", Batch(whole.labels, whole.numeric, whole.ids[:, :0]))
    bare = replace(dataset, schema=Schema(dataset.schema.numeric, ()), splits=(split,))
    assert tried(Blind, bare) == tried(Plain, bare) == Findings()


LIST = [nn.Linear(1, 1, bias=False)]  # layers of which nn.Module knows nothing


class Silent(Plain):
    """Forgets to return."""

    def forward(self, numeric: Tensor, fields: Tensor) -> Tensor:
        super().forward(numeric, fields)
        return None  # type: ignore[return-value]


class Blind(Plain):
    """Looks at the numeric features alone."""

    def forward(self, numeric: Tensor, fields: Tensor) -> Tensor:
        return super().forward(numeric, torch.zeros_like(fields))


class Late(Plain):
    """Makes a layer when it is first used."""

    def end(self, logits: Tensor) -> Tensor:
        if not hasattr(self, "late"):
            self.late = nn.Linear(1, 1, bias=False)
        return self.late(logits[:, None])[:, 0]  # type: ignore[no-any-return]


def frozen(model: Plain) -> None:
    model.last.weight.requires_grad_(False)


def count(model: Any, logits: Tensor) -> Tensor:
    model.seen += 1
    return logits


@pytest.mark.parametrize(
    ("made", "sentence"),
    [
        (kind(lambda _, logits: logits.unsqueeze(1)), r"shape \[\d+, 1\] for a batch of \d+, not \[\d+\]; end forward"),
        (kind(lambda _, logits: logits.squeeze()), r"shape \[\] for a batch of 1, not \[1\]; squeeze\(1\) keeps"),
        (kind(lambda _, logits: logits.sum()), r"shape \[\] for a batch of \d+, not \[\d+\]\."),
        (kind(lambda _, logits: logits / 0), "returns logits that are NaN or infinite"),
        (
            kind(lambda model, logits: logits if model.training else logits[:, None]),
            r"shape \[32, 1\] in eval mode, for a batch of 32, not \[32\]\.",
        ),
        (kind(lambda model, logits: logits if model.training else logits * np.nan), "that are NaN in eval mode"),
        (
            kind(lambda model, logits: logits if model.training else (logits,)),
            "returns a tuple in eval mode, not a",
        ),
        (kind(lambda _, logits: (logits, 0)), "returns a tuple, not a tensor of logits; return the logits alone"),
        (kind(lambda _, logits: {"y": logits}), "returns a dict, not a tensor of logits; return the logits alone"),
        (Silent, "returns a NoneType, not a tensor of logits; end forward with return"),
        (Blind, r"no gradient to the looked-up fields, .*does not use; compute the logits from them, too\."),
        (Late, r"parameter of shape \[1, 1\] that is not among its parameters\(\), so that it is never .* __init__"),
        (kind(lambda _, logits: logits.detach()), r"without a gradient; leave out detach\(\)"),
        (
            kind(lambda _, logits: logits[:, 0]),
            r"fails on a batch of numeric \[\d+, \d+\] and fields .*IndexError.*test_dry_run\.py:\d+\)",
        ),
        (
            kind(lambda _, logits: torch.nan_to_num((logits * 0).sqrt())),
            "a gradient to the looked-up fields that is NaN",
        ),
        (
            kind(init=lambda model: setattr(model, "idle", nn.Linear(2, 2))),
            r"no gradient to the parameter idle\.weight",
        ),
        (
            kind(
                lambda model, logits: logits + model.bias(torch.zeros_like(logits).long())[:, 0],
                lambda model: setattr(model, "bias", nn.Embedding(2, 1, sparse=True)),
            ),
            "fails on a batch of .*Sparse",
        ),
        (kind(init=frozen), r"parameter last\.weight without a gradient \(requires_grad=False\)"),
        (kind(init=lambda model: model.double()), r"parameter last\.weight of type float64"),
        (kind(init=lambda model: setattr(model, "late", nn.LazyLinear(2))), r"lazy parameter late\.weight"),
        (kind(init=lambda model: model.nothing), r"cannot be built \(AttributeError: .*, in .*test_dry_run\.py:\d+\)"),
        (kind(init=lambda model: model.to("meta")), r"fails in a dry run \(NotImplementedError: .*meta tensor"),
        (
            kind(
                lambda model, logits: model.more[0](logits[:, None])[:, 0], lambda model: setattr(model, "more", LIST)
            ),
            r"parameter of shape \[1, 1\] that is not among its parameters.* in an nn\.ModuleList instead of a list\.",
        ),
        (type("Empty", (nn.Module,), {}), "has no parameters"),
    ],
)
def test_what_breaks_the_contract_is_told(tried: Any, made: type[nn.Module], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence) as told:
        tried(made)
    assert "\n" not in str(told.value) and str(told.value).startswith("model.target=made_here.Made")


def test_lack_of_memory_is_no_fault_of_the_model(tried: Any) -> None:
    with pytest.raises(GbactlError, match=r"^model\S+ fails on a batch of .* \(RuntimeError: .*allocate") as told:
        tried(kind(lambda _, logits: logits + torch.empty(1 << 50)))
    assert type(told.value) is GbactlError


class Attends(nn.Module):
    """Mean of field `asked`, raw, beside all fields; `options` spoil it."""

    def __init__(
        self, fields: int, dim: int, list_targets: tuple[int | None, ...], asked: int = -1, nan: bool = False,
        unused: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        assert list_targets == (None, 3)[: len(list_targets)], "a history of field 3"
        self.raw_fields = [asked % fields]
        self.last, self.nan, self.unused = nn.Linear((fields + 1) * dim, 1), nan, unused

    def forward(self, numeric: Tensor, fields: Tensor, raw: list[tuple[Tensor, Tensor]]) -> Tensor:
        [(rows, mask)] = raw
        assert rows.shape[:2] == mask.shape and mask.dtype == torch.bool and not rows[~mask].any()
        count = mask.sum(1, keepdim=True)
        mean = rows.sum(1) / (count if self.nan else count.clamp(min=1)) * (0 if self.unused else 1)
        logits: Tensor = self.last(torch.cat([fields.flatten(1), mean.detach() if self.unused else mean], 1))
        return logits.squeeze(1)


def test_a_model_of_raw_fields(
    dataset: Dataset, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    lists = {"lists": 1, "list_length": 3, "history_length": 4, "cache": str(tmp_path_factory.mktemp("lists"))}
    listed = open_dataset(prepare({**small_data.options(600), **lists}))
    module = ModuleType("made_here")
    module.Made = Attends  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "made_here", module)

    def tried(data: Dataset, **options: Any) -> list[str]:
        return dry_run(ModelConfig("made", dim=4, target="made_here.Made", options=options), data, 0, "fp32")

    assert tried(listed) == tried(listed, asked=4) == Findings()
    for data, options, sentence in (
        (listed, {"asked": 2}, r"wants field 2 raw \(raw_fields\), but the multi-valued fields are \[4, 5\]\."),
        (dataset, {}, "wants field 3 raw .*, but the data have no multi-valued fields"),
        (listed, {"nan": True}, "returns logits that are NaN"),
        (listed, {"unused": True}, "gives no gradient to raw field 5, which forward does not use"),
    ):
        with pytest.raises(ConfigError, match=sentence):
            tried(data, **options)


class Misnamed(Plain):
    """Has another name for the number of fields."""

    def __init__(self, numeric: int, num_fields: int, dim: int) -> None:
        super().__init__(numeric, num_fields, dim)


def test_options_that_the_constructor_does_not_take(tried: Any) -> None:
    with pytest.raises(
        ConfigError, match=r"needs the option num_fields; type .*, or rename the argument: .* fields, dim"
    ):
        tried(Misnamed)
    with pytest.raises(ConfigError, match=r"has no option scales\. Did you mean scale\?"):
        tried(Plain, scales=2.0)


def test_what_cannot_be_replayed_is_told(tried: Any) -> None:
    drawn = np.random.default_rng(0)
    said, doubt = tried(kind(lambda _, logits: logits * float(drawn.random())))
    assert said.startswith("The run cannot be replayed: model.target=made_here.Made gives another gradient")
    said, doubt = tried(kind(count, init=lambda model: model.register_buffer("seen", torch.zeros(1))))
    assert "changes its buffer seen in training" in said
    said, doubt = tried(kind(lambda _, logits: nn.functional.dropout(logits, 0.5)))
    assert "draws random numbers in eval mode" in said and not doubt


def test_probabilities_instead_of_logits_are_told(tried: Any) -> None:
    for end in (lambda logits: logits.sigmoid(), lambda logits: logits[:, None].sigmoid().double().squeeze(1)):
        obstacle, said = tried(kind(lambda _, logits, end=end: end(logits)))
        assert said.startswith("model.target=made_here.Made ends with a sigmoid, which the loss applies again; ")
        assert not obstacle, "its run can be replayed"
    assert (
        tried(kind(lambda _, logits: logits.sigmoid() - 0.5))
        == tried(kind(lambda _, logits: logits * 1e-3))
        == Findings()
    )


def test_options_that_a_constructor_takes_as_any_arguments_are_told(tried: Any) -> None:
    class Loose(nn.Module):
        forward, end = Plain.forward, Plain.end

        def __init__(self, numeric: int, fields: int, dim: int, scale: float = 1.0, **more: Any) -> None:
            super().__init__()
            self.last, self.scale = nn.Linear(numeric + fields * dim, 1), scale

    assert tried(Loose, scale=2.0) == Findings()
    assert tried(Loose, scales=2.0, depth=1).doubt == (
        "model.target=made_here.Made takes model.scales, model.depth as **arguments, so that a misspelt key is not "
        "noticed. Did you mean scale?"
    )


@pytest.mark.parametrize("target", ["cross.Cross", "fuxictr_dcnv2.FuxiDCNv2", "torchrec_dcnv2.TorchRecDCNv2"])
def test_the_templates_keep_the_contract(target: str, dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    if not target.startswith("cross"):
        pytest.importorskip(target.partition("_")[0], exc_type=ImportError)
    monkeypatch.syspath_prepend(Path(__file__).parents[3] / "experiments" / "templates")
    cfg = ModelConfig("own", dim=4, hidden=[8], dropout=0.1, target=f"click_parts.{target}", options={"layers": 2})
    assert dry_run(cfg, dataset, 0, "fp32") == dry_run(cfg, dataset, 0, "bf16") == Findings()


def test_initial_values_dropout_and_statistics_follow_from_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    def init(model: Any) -> None:
        model.norm, model.drop = nn.BatchNorm1d(1), nn.Dropout(0.5)

    def end(model: Any, logits: Tensor) -> Tensor:
        return model.drop(model.norm(logits[:, None]))[:, 0]  # type: ignore[no-any-return]

    module = ModuleType("made_here")
    module.Made = kind(end, init)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "made_here", module)
    cfg = ModelConfig("made", dim=4, target="made_here.Made", batch_norm_momentum=0.3)
    drawn = np.random.default_rng(1)
    x, y, rows = drawn.random((9, 2), np.float32), drawn.random(9) < 0.5, drawn.random((9, 3, 4), np.float32)
    found = []
    for noise in (1, 2):
        torch.manual_seed(noise)
        computer = GradientComputer(build(cfg, 2, 3, seed=5))
        torch.manual_seed(noise)
        loss, of_rows = computer.gradient(x, y, rows, 7)
        out = np.empty(computer.flat.size, np.float32)
        computer.flat.gradient_into(out)
        found.append((loss, of_rows.tobytes(), out.tobytes()))
        alone = computer.gradient(x[:1], y[:1], rows[:1], 7)[0]
        assert np.isfinite(alone) and computer.predict(x, rows).shape == (9,)
    assert found[0] == found[1]
    assert computer.flat.dense_spec.momentum == pytest.approx(0.3) and computer.flat.buffers == 2
    assert dense_size(cfg, 2, 3) == computer.flat.size and row_width(cfg) == 4
