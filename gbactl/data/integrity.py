"""Checksums of cache files and fingerprints of source files.

A sampled digest reads at most 3 MiB of a file whatever its size; the full CRC reads all of it.
"""

from __future__ import annotations

import hashlib
import zlib
from pathlib import Path
from typing import Any

from gbactl.errors import DataError

SAMPLE = 1 << 16
SAMPLES = 48
SMALL = 64 << 20


def _sample(path: Path, size: int) -> str:
    digest = hashlib.blake2b(str(size).encode(), digest_size=16)
    with path.open("rb") as file:
        if size <= SAMPLE * SAMPLES:
            digest.update(file.read())
        else:
            for i in range(SAMPLES):
                file.seek((size - SAMPLE) * i // (SAMPLES - 1))
                digest.update(file.read(SAMPLE))
    return digest.hexdigest()


def _crc(path: Path) -> int:
    value = 0
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            value = zlib.crc32(block, value)
    return value


def describe_file(path: Path) -> dict[str, Any]:
    """Size, sampled digest and CRC of a file, {size, sample, crc}, for `check_files` to compare with."""
    size = path.stat().st_size
    return {"size": size, "sample": _sample(path, size), "crc": _crc(path)}


def check_files(folder: Path, files: dict[str, dict[str, Any]], *, full: bool) -> None:
    """Compare the files with their descriptions. Raises DataError that names the damaged file."""
    for name, expected in files.items():
        path = folder / name
        if path.is_symlink():
            raise DataError(f"{path} leads out of its folder; prepare the data again.")
        try:
            size = path.stat().st_size
            same = size == expected["size"] and _sample(path, size) == expected["sample"]
            same = same and (not full or _crc(path) == expected["crc"])
        except OSError as error:
            raise DataError(f"{path} cannot be read ({error.strerror}); prepare the data again.") from None
        if not same:
            raise DataError(f"{path} is damaged; prepare the data again.")


def fingerprint(path: Path) -> str:
    """Identity of a source file, independent of its path: a hash of its content.

    Above 64 MiB of size, time and samples.
    """
    stat = path.stat()
    if stat.st_size <= SMALL:
        return hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest()
    return f"{stat.st_size}-{stat.st_mtime_ns}-{_sample(path, stat.st_size)}"
