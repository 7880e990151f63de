"""The commands that the README shows."""

from __future__ import annotations

import re
from pathlib import Path

README = (Path(__file__).resolve().parents[2] / "README.md").read_text()


def commands(language: str, section: str = "") -> list[str]:
    """The command lines of the README's blocks in a language, comments cut off; of one `section` alone."""
    text = README.split(f"\n## {section}\n")[1].split("\n## ")[0] if section else README
    blocks = re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)
    lines = [line.split("  #")[0].strip() for block in blocks for line in block.splitlines()]
    return [line for line in lines if line]
