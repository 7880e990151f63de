"""Where things are: the conf tree, beside the package in a checkout and inside it in a wheel."""

from __future__ import annotations

from pathlib import Path


def conf_dir() -> Path:
    """The directory of the Hydra configuration tree."""
    package = Path(__file__).resolve().parent
    inside = package / "conf"
    return inside if inside.is_dir() else package.parent / "conf"
