"""Source files on remote storage (s3://, gs://, hdfs:// and the like), read in place through fsspec.

Of a remote file only the prepared cache is kept on this machine. fsspec has its own drivers for some protocols; s3://
and gs:// need the extras gbactl[s3] and gbactl[gs], hdfs:// needs Hadoop's library libhdfs.
"""

from __future__ import annotations

import fnmatch
import functools
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from gbactl.errors import ConfigError, DataError, MissingDependencyError

EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gs", "gcs": "gs"}  # of gbactl, by the protocol whose driver they install
_URL = re.compile(r"(\w+::)*[a-z][a-z0-9+.-]+://")


def is_remote(path: str) -> bool:
    """Return whether a path is a URL."""
    return _URL.match(path) is not None


@dataclass(frozen=True)
class RemoteFile:
    """Remote file, with the properties of a path that readers use."""

    url: str

    def __str__(self) -> str:
        """Return the URL."""
        return self.url

    @property
    def name(self) -> str:
        """Last part of the URL."""
        return self.url.rpartition("/")[2]

    def open(self, mode: str = "rb") -> BinaryIO:
        """Open the file, which is then fetched in blocks as it is read. Raises DataError."""
        filesystem, path = _filesystem(self.url)
        with _errors_of(self.url):
            return filesystem.open(path, mode)  # type: ignore[no-any-return]

    @property
    def size(self) -> int:
        """Size in bytes. Raises DataError."""
        filesystem, path = _filesystem(self.url)
        with _errors_of(self.url):
            return int(filesystem.size(path) or 0)

    def fingerprint(self) -> str:
        """Return the properties that the storage or archive reports: size, time, checksum. Raises DataError."""
        from fsspec.archive import AbstractArchiveFileSystem

        filesystem, path = _filesystem(self.url)
        inner = getattr(filesystem, "fs", filesystem)  # behind a cache
        # an archive's ukey is another one in each process
        properties = filesystem.info if isinstance(inner, AbstractArchiveFileSystem) else filesystem.ukey
        with _errors_of(self.url):
            return str(properties(path))


SourceFile = Path | RemoteFile


def size_of(file: SourceFile) -> int:
    """Return a source file's size in bytes. Raises DataError for a remote file that cannot be reached."""
    return file.stat().st_size if isinstance(file, Path) else file.size


@functools.lru_cache(maxsize=64)
def _filesystem(url: str) -> tuple[Any, str]:
    """Connect to the storage of a URL; return fsspec's file system and the path in it."""
    import fsspec

    try:
        return fsspec.core.url_to_fs(url)  # type: ignore[no-any-return]
    except ImportError as error:
        protocol = next(filter(_lacks_driver, (link.partition("://")[0] for link in url.split("::"))), url)
        told = f"type pip install 'gbactl[{EXTRAS[protocol]}]'" if protocol in EXTRAS else f"fsspec says: {error}"
        raise MissingDependencyError(f"{protocol}:// has no driver here; {told.rstrip('.')}.") from None
    except ValueError as error:
        raise ConfigError(f"{url} cannot be read ({error}); type a path, or s3://, gs:// or hdfs://.") from None
    except Exception as error:  # of the driver: credentials, network
        raise _unreachable(url, error) from None


def _lacks_driver(protocol: str) -> bool:
    import fsspec

    try:
        fsspec.get_filesystem_class(protocol)
    except ImportError:
        return True
    except ValueError:  # unknown
        pass
    return False


@contextmanager
def _errors_of(url: str) -> Iterator[None]:
    """Context that turns an exception of a storage driver into a DataError."""
    try:
        yield
    except FileNotFoundError:
        raise DataError(f"{url} does not exist; type the URL of a file, a folder or a glob.") from None
    except Exception as error:  # of the driver: credentials, network
        raise _unreachable(url, error) from None


def _unreachable(url: str, error: Exception) -> DataError:
    reason = " ".join(str(error).split()) or type(error).__name__
    return DataError(f"{url} cannot be read ({reason[:300]}); check the address and the credentials.")


def find_remote(url: str, patterns: list[str]) -> list[RemoteFile]:
    """Find the files that a URL denotes: a file, a glob, or a folder with `patterns`. Raises DataError."""
    filesystem, path = _filesystem(url)
    with _errors_of(url):
        if any(each in path for each in "*?["):
            files = [each for each in filesystem.glob(path) if filesystem.isfile(each)]
        elif not filesystem.isdir(path):
            filesystem.info(path)  # raises FileNotFoundError
            files = [path]
        else:
            inside = [each for each in filesystem.ls(path, detail=False) if filesystem.isfile(each)]
            files = [each for each in inside if any(fnmatch.fnmatch(each.rpartition("/")[2], p) for p in patterns)]
    if not files:
        raise DataError(f"{url} has no file that matches; type the URL of a file.")
    links = url.split("::")  # simplecache::zip://*.csv::s3://bucket/t.zip: the first link but caches is of the files
    place = next(i for i, link in enumerate(links) if "://" in link or "cache" not in link)
    found = ([*links[:place], str(filesystem.unstrip_protocol(each)), *links[place + 1 :]] for each in files)
    return [RemoteFile("::".join(each)) for each in found]
