"""What Linux tells of a processor, and what is made of it."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

import pytest

from gbactl import cpu
from gbactl.doctor import check_bf16

ZEN4 = "model name\t: AMD EPYC\nflags\t\t: fpu sse4_1 fma avx avx2 avx512f avx512_bf16 sha_ni\n\nflags\t\t: other\n"
ZEN3 = "model name\t: AMD EPYC\nflags\t\t: fpu sse4_1 fma avx avx2 sha_ni\n"
GRAVITON = "BogoMIPS\t: 2100.00\nFeatures\t: fp asimd sve i8mm bf16\n"
OLD_ARM = "Features\t: fp asimd\n"


@pytest.mark.parametrize(
    ("told", "lacks", "widest", "vectors"),
    [
        (ZEN4, False, "AVX-512 with bf16", "sse4_1 fma avx avx2 avx512f avx512_bf16"),
        (ZEN3, True, "AVX2", "sse4_1 fma avx avx2"),
        (GRAVITON, False, "", ""),
        (OLD_ARM, True, "", ""),
        ("nothing of the kind\n", False, "", ""),
        (None, False, "", ""),
    ],
)
def test_what_is_made_of_it(tmp_path: Path, told: str | None, lacks: bool, widest: str, vectors: str) -> None:
    path = tmp_path / "cpuinfo"
    if told is not None:
        path.write_text(told)
    assert cpu.lacks_bf16(path) is lacks
    assert cpu.widest(path) == widest
    assert cpu.vectors(path) == vectors


@pytest.mark.parametrize(("told", "name"), [(ZEN4, "AMD EPYC"), (GRAVITON, ""), ("", "")])
def test_what_it_is_called(tmp_path: Path, told: str, name: str) -> None:
    path = tmp_path / "cpuinfo"
    path.write_text(told)
    assert cpu.model(path) == name


@pytest.mark.parametrize("lacks", [True, False])
def test_the_doctor_tells_of_it(monkeypatch: pytest.MonkeyPatch, lacks: bool) -> None:
    monkeypatch.setattr(cpu, "lacks_bf16", lambda: lacks)
    check = check_bf16()
    assert check.ok is not lacks and not check.essential
    assert ("nothing for bf16" in check.found) is lacks


def test_freed_memory_is_kept_where_malloc_is_glibcs() -> None:
    script = "from gbactl import cpu; print(cpu.keep_freed_memory())"  # in a process of its own: it cannot be undone
    told = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert told.strip() == str(platform.libc_ver()[0] == "glibc")
