from __future__ import annotations

import gzip
import lzma
from collections.abc import Callable
from pathlib import Path

import fsspec
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from gbactl.data import text_files
from gbactl.data.text_files import find, read_blocks
from gbactl.errors import ConfigError, DataError

TEXT = b"".join(b"line %d, some words\n" % i for i in range(5000))
PACK: dict[str, Callable[[bytes], bytes]] = {
    "plain": lambda b: b,
    "gzip": gzip.compress,
    "zstd": zstandard.ZstdCompressor().compress,
    "xz": lzma.compress,
}


def read(path: Path) -> bytes:
    return b"".join(block.data for _, block in read_blocks(path))


@pytest.mark.parametrize("kind", PACK)
def test_every_compression_reads_the_same(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "no-telling-name"
    path.write_bytes(PACK[kind](TEXT))
    assert read(path) == TEXT


@pytest.mark.parametrize("kind", ["gzip", "zstd", "xz"])
def test_concatenated_archives_read_as_one(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(PACK[kind](TEXT) + PACK[kind](b"more\n"))
    assert read(path) == TEXT + b"more\n"


@pytest.mark.parametrize("kind", ["gzip", "zstd", "xz"])
@pytest.mark.parametrize("keep", [0.5, 0.9])
def test_a_truncated_archive_is_named_with_its_line(kind: str, keep: float, tmp_path: Path) -> None:
    packed = PACK[kind](TEXT)
    path = tmp_path / "f"
    path.write_bytes(packed[: int(len(packed) * keep)])
    with pytest.raises(DataError, match=rf"f, line \d+: the {kind} data ends too early"):
        read(path)


def test_the_line_of_a_truncation_is_the_one_reached(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(gzip.compress(TEXT, 0)[: len(TEXT) // 2])
    with pytest.raises(DataError, match=r"line 25\d\d"):
        read(path)


@pytest.mark.parametrize("kind", ["gzip", "zstd", "xz"])
def test_a_flipped_byte_is_found(kind: str, tmp_path: Path) -> None:
    packed = bytearray(
        zstandard.ZstdCompressor(write_checksum=True).compress(TEXT) if kind == "zstd" else PACK[kind](TEXT)
    )
    packed[len(packed) // 2] ^= 0x55
    path = tmp_path / "f"
    path.write_bytes(packed)
    with pytest.raises(DataError, match=rf"line \d+: the {kind} data"):
        read(path)


def test_an_empty_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "f").touch()
    with pytest.raises(DataError, match="f, line 1: the file is empty"):
        read(tmp_path / "f")


def test_a_file_without_lines_is_refused_before_it_fills_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_files, "BLOCK", 1000)
    monkeypatch.setattr(text_files, "PIECE", 500)
    monkeypatch.setattr(text_files, "LONGEST_LINE", 100)
    (tmp_path / "f").write_bytes(b"a\nb\n" + b"x" * 5000)
    with pytest.raises(DataError, match="f, line 3: longer"):
        read(tmp_path / "f")


@given(lines=st.lists(st.binary(max_size=30).map(lambda b: b.replace(b"\n", b"")), min_size=1), end=st.booleans())
def test_blocks_are_whole_lines_with_true_numbers(
    lines: list[bytes], end: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    text = b"\n".join(lines) + (b"\n" if end or not lines[-1] else b"")
    path = tmp_path_factory.mktemp("b") / "f"
    path.write_bytes(b"-" + text)
    expected = (b"-" + text).removesuffix(b"\n").split(b"\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_files, "BLOCK", 40)
        patch.setattr(text_files, "PIECE", 7)
        seen = [block for _, block in read_blocks(path)]
    numbered = [(b.first_line + i, line) for b in seen for i, line in enumerate(b.data.split(b"\n")[:-1])]
    assert numbered == list(enumerate(expected, 1))


def test_directories_globs_and_lists_are_in_natural_order(tmp_path: Path) -> None:
    for name in ("day_10.gz", "day_2.gz", "day_1.gz", "README"):
        (tmp_path / name).touch()
    names = ["day_1.gz", "day_2.gz", "day_10.gz"]
    assert [p.name for p in find(str(tmp_path), ["day_*"])] == names
    assert [p.name for p in find(str(tmp_path / "day_*"), [])] == names
    assert [p.name for p in find([str(tmp_path / n) for n in reversed(names)], [])] == names[::-1]


def test_files_of_a_glob_over_folders_are_in_the_order_of_the_folders(tmp_path: Path) -> None:
    memory, wanted = fsspec.filesystem("memory"), list[str]()
    for day in (2, 10):
        for part in (0, 1):
            wanted.append(f"day={day}/part-{part}.csv")
            memory.pipe(f"/clicks/{wanted[-1]}", b"x")
            path = tmp_path / wanted[-1]
            path.parent.mkdir(exist_ok=True)
            path.touch()
    assert [str(p) for p in find("memory://clicks/*/part-*.csv", [])] == [f"memory:///clicks/{each}" for each in wanted]
    assert [str(p) for p in find(str(tmp_path / "day=*" / "part-*.csv"), [])] == [str(tmp_path / p) for p in wanted]


def test_what_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"type data\.path=FILE"):
        find(None, [])
    with pytest.raises(DataError, match="nothing does not exist"):
        find(str(tmp_path / "nothing"), [])
    with pytest.raises(DataError, match=r"no file that matches day_\* \*\.tsv"):
        find(str(tmp_path), ["day_*", "*.tsv"])
