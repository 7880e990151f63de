"""Two bytes a value: the same bits as torch's own conversions, within what the docstring says of extremes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gbactl.kernels.halves import CODECS, Codec, codec_of, rounded

TORCH = {"fp16": torch.float16, "bf16": torch.bfloat16}
NAMES = sorted(CODECS)
FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)


def narrow(codec: Codec, values: np.ndarray) -> np.ndarray:
    out = np.empty(len(values), np.uint16)
    codec.narrow(values, out)
    return out


def by_torch(name: str, values: np.ndarray) -> np.ndarray:
    bits: np.ndarray = torch.from_numpy(values).to(TORCH[name]).view(torch.int16).numpy().view(np.uint16)
    return bits


@pytest.mark.parametrize("name", NAMES)
@given(given_values=st.lists(FLOATS, min_size=1, max_size=40))
def test_any_numbers_become_what_torch_makes_of_them(name: str, given_values: list[float]) -> None:
    values = np.array(given_values, np.float32)
    if name == "fp16":
        values = np.clip(values, -65504, 65504)
    assert np.array_equal(narrow(CODECS[name], values), by_torch(name, values))


@pytest.mark.parametrize("name", NAMES)
def test_half_of_the_way_between_two_goes_to_the_even_one(name: str) -> None:
    bits = 13 if name == "fp16" else 16
    mantissas = np.arange(0x3F800000, 0x3F800000 + (64 << bits), 1 << (bits - 1), dtype=np.uint32)
    values = mantissas.view(np.float32)
    assert np.array_equal(narrow(CODECS[name], values), by_torch(name, values))


@pytest.mark.parametrize("name", NAMES)
def test_what_has_two_bytes_comes_back_as_it_was(name: str) -> None:
    every = np.arange(1 << 16, dtype=np.uint32).astype(np.uint16)
    widened = np.empty(1 << 16, np.float32)
    CODECS[name].widen(every, widened)
    known = torch.from_numpy(every.view(np.int16)).view(TORCH[name]).float().numpy()
    assert np.array_equal(widened, known, equal_nan=True)
    finite = np.isfinite(widened)
    assert np.array_equal(narrow(CODECS[name], widened)[finite], every[finite])


@pytest.mark.parametrize("name", NAMES)
def test_what_is_not_a_number_stays_none(name: str) -> None:
    quiet, loud = np.array([0x7FFFFFFF, 0xFFFFFFFF], np.uint32).view(np.float32), np.array([np.nan], np.float32)
    for values in (quiet, loud):
        assert np.isnan(rounded(CODECS[name], values)).all()


def test_what_is_too_large() -> None:
    values = np.array([1e9, -1e9, np.inf, -np.inf, 65519.0], np.float32)
    assert rounded(CODECS["fp16"], values).tolist() == [65504.0, -65504.0, 65504.0, -65504.0, 65504.0]
    assert rounded(CODECS["bf16"], values)[2:4].tolist() == [np.inf, -np.inf]


def test_without_a_codec_nothing_is_copied() -> None:
    values = np.ones((2, 3), np.float32)
    assert codec_of("fp32") is None and rounded(None, values) is values
    assert rounded(CODECS["fp16"], values).shape == (2, 3)
