"""A collective takes flat float32 vectors alone."""

from __future__ import annotations

import numpy as np
import pytest

from gbactl.collective.base import as_array, rank_failed_error
from gbactl.errors import PeerGoneError


@pytest.mark.parametrize(
    "bad",
    [np.zeros(3), np.zeros((2, 2), np.float32), np.zeros(8, np.float32)[::2]],
    ids=["f64", "2d", "strided"],
)
def test_what_is_not_a_flat_float32_vector_is_refused(bad: np.ndarray) -> None:
    with pytest.raises(ValueError, match="float32"):
        as_array(bad)


def test_a_broken_all_reduce_is_no_cause_but_the_notice_of_another_rank_s_failure() -> None:
    assert isinstance(rank_failed_error("dense.1", 0), PeerGoneError)
