"""What gbactl says where Horovod is missing or half installed."""

from __future__ import annotations

import sys
import types

import pytest

from gbactl.collective.horovod import import_horovod
from gbactl.errors import MissingDependencyError


@pytest.fixture
def horovod(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """An installed Horovod whose torch part is an empty module: what a failed build leaves."""
    for name in [name for name in sys.modules if name.startswith("horovod")]:
        monkeypatch.delitem(sys.modules, name)
    package, part = types.ModuleType("horovod"), types.ModuleType("horovod.torch")
    package.torch = part  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "horovod", package)
    monkeypatch.setitem(sys.modules, "horovod.torch", part)
    return part


def test_a_horovod_without_its_library_is_as_good_as_none(horovod: types.ModuleType) -> None:
    with pytest.raises(MissingDependencyError, match=r"compiled part is missing.*make install.*=gloo"):
        import_horovod()


def test_a_complete_one_is_returned(horovod: types.ModuleType) -> None:
    horovod.init = lambda: None  # type: ignore[attr-defined]
    assert import_horovod() is horovod


def test_the_sentence_is_one_line_whatever_the_import_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "horovod", None)
    monkeypatch.delitem(sys.modules, "horovod.torch", raising=False)
    with pytest.raises(MissingDependencyError) as caught:
        import_horovod()
    assert "\n" not in str(caught.value)
    assert "python -m gbactl.install.horovod" in str(caught.value)
