"""Two bytes a value: the same bits as torch's own conversions, within what the docstring says of extremes, compiled or
not, and whether denormals are flushed or not."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gbactl.kernels import codec_of, load
from gbactl.kernels.half_precision import CODECS, Codec, round_here, rounded
from gbactl.kernels.native import flushed

TORCH = {"fp16": torch.float16, "bf16": torch.bfloat16}
NAMES = sorted(CODECS)
KERNELS = ("native", "twin")
FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)


def narrow(codec: Codec, values: np.ndarray) -> np.ndarray:
    out = np.empty(len(values), np.uint16)
    codec.narrow(values, out)
    return out


def by_torch(name: str, values: np.ndarray) -> np.ndarray:
    bits: np.ndarray = torch.from_numpy(values).to(TORCH[name]).view(torch.int16).numpy().view(np.uint16)
    return bits


@pytest.mark.parametrize("which", KERNELS)
@pytest.mark.parametrize("name", NAMES)
@given(given_values=st.lists(FLOATS, min_size=1, max_size=40))
def test_any_numbers_become_what_torch_makes_of_them(name: str, which: str, given_values: list[float]) -> None:
    values = np.array(given_values, np.float32)
    if name == "fp16":
        values = np.clip(values, -65504, 65504)
    assert np.array_equal(narrow(load(which).codec(name), values), by_torch(name, values))


@pytest.mark.parametrize("which", KERNELS)
@pytest.mark.parametrize("name", NAMES)
def test_half_of_the_way_between_two_goes_to_the_even_one(name: str, which: str) -> None:
    bits = 13 if name == "fp16" else 16
    mantissas = np.arange(0x3F800000, 0x3F800000 + (64 << bits), 1 << (bits - 1), dtype=np.uint32)
    values = mantissas.view(np.float32)
    assert np.array_equal(narrow(load(which).codec(name), values), by_torch(name, values))


@pytest.mark.parametrize("which", KERNELS)
@pytest.mark.parametrize("name", NAMES)
def test_what_has_two_bytes_comes_back_as_it_was(name: str, which: str) -> None:
    every = np.arange(1 << 16, dtype=np.uint32).astype(np.uint16)
    widened = np.empty(1 << 16, np.float32)
    load(which).codec(name).widen(every, widened)
    known = torch.from_numpy(every.view(np.int16)).view(TORCH[name]).float().numpy()
    assert np.array_equal(widened, known, equal_nan=True)
    finite = np.isfinite(widened)
    assert np.array_equal(narrow(load(which).codec(name), widened)[finite], every[finite])


@pytest.mark.parametrize("which", KERNELS)
@pytest.mark.parametrize("name", NAMES)
def test_what_is_not_a_number_stays_none(name: str, which: str) -> None:
    quiet, loud = np.array([0x7FFFFFFF, 0xFFFFFFFF], np.uint32).view(np.float32), np.array([np.nan], np.float32)
    for values in (quiet, loud):
        assert np.isnan(rounded(load(which).codec(name), values)).all()


@pytest.mark.parametrize("which", KERNELS)
def test_what_is_too_large(which: str) -> None:
    values = np.array([1e9, -1e9, np.inf, -np.inf, 65519.0], np.float32)
    assert rounded(load(which).codec("fp16"), values).tolist() == [65504.0, -65504.0, 65504.0, -65504.0, 65504.0]
    assert rounded(load(which).codec("bf16"), values)[2:4].tolist() == [np.inf, -np.inf]


def test_without_a_codec_nothing_is_copied() -> None:
    values = np.ones((2, 3), np.float32)
    assert codec_of("fp32") is None and rounded(None, values) is values
    assert rounded(CODECS["fp16"], values).shape == (2, 3)


@pytest.mark.parametrize("name", NAMES)
def test_compiled_or_not_the_bits_are_the_same(name: str) -> None:
    """Of a 16,384th of all float32 there are, flushing denormals as those who train do, or not."""
    values = np.arange(0, 1 << 32, 16381, np.uint64).astype(np.uint32).view(np.float32)
    both = [narrow(load(which).codec(name), values) for which in KERNELS]
    with flushed():
        both += [narrow(load(which).codec(name), values) for which in KERNELS]
    assert np.isnan(values).any() and all(np.array_equal(found, both[0]) for found in both)


@pytest.mark.parametrize("which", KERNELS)
@pytest.mark.parametrize("name", NAMES)
def test_in_place_is_there_and_back(name: str, which: str) -> None:
    values = np.random.default_rng(0).normal(size=(3, 5)).astype(np.float32)
    there = rounded(CODECS[name], values)
    for here in (values[1].copy(), np.repeat(values[1], 2)[::2]):
        round_here(load(which).codec(name), here)
        assert np.array_equal(here, there[1]) and not np.array_equal(here, values[1])


@pytest.mark.parametrize("name", NAMES)
def test_memory_of_any_kind_will_do(name: str) -> None:
    """What came over a wire may begin anywhere."""
    codec, values = load("native").codec(name), np.arange(1, 8, dtype=np.float32) / 3
    odd = np.zeros(4 * 7 + 1, np.uint8)[1:].view(np.float32)
    odd[:] = values
    halves = np.zeros(2 * 7 + 1, np.uint8)[1:].view(np.uint16)
    codec.narrow(odd, halves)
    assert np.array_equal(halves, narrow(CODECS[name], values))
    codec.widen(halves, odd)
    assert np.array_equal(odd, rounded(CODECS[name], values))
