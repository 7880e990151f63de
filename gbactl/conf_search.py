"""Search path of configuration files: a user's folders, then conf/ beside the package or, in a wheel, inside it."""

from __future__ import annotations

from pathlib import Path

_SEARCHED: list[Path] = []


def conf_dir() -> Path:
    """Return the directory of the Hydra configuration tree."""
    package = Path(__file__).resolve().parent
    inside = package / "conf"
    return inside if inside.is_dir() else package.parent / "conf"


def search_also(folders: list[Path]) -> None:
    """Find configuration files in these folders too, before those of gbactl: Hydra's search path of this process."""
    _SEARCHED[:] = folders


def option_files(group: str) -> dict[str, Path]:
    """Return the files that GROUP=OPTION chooses, by option in alphabetical order."""
    folders = [conf_dir(), *reversed(_SEARCHED)]
    found = {path.stem: path for folder in folders for path in (folder / group).glob("*.yaml")}
    return dict(sorted(found.items()))
