"""Progress display of a run that was started from Python: a bar in a notebook, else what a command shows.

The notebook's bar is HTML that is renewed in place; it needs nothing beside IPython.
"""

from __future__ import annotations

import html
import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from gbactl.launch.progress import ProgressDisplay
from gbactl.tracking.run_description import SweepPlace


def display() -> type[ProgressDisplay]:
    """Choose the progress display for where this process runs."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return NotebookDisplay if hasattr(shell, "kernel") else PythonDisplay


class PythonDisplay(ProgressDisplay):
    """Display for a script, which gets the result as a value: it is not printed."""

    def result(self, result: dict[str, Any], commands: Sequence[tuple[str, str]] = ()) -> None:
        """Remove the progress bar."""
        self.clear()


class NotebookDisplay(PythonDisplay):
    """Progress bar in the output of a notebook's cell; everything else is printed there as text."""

    def __init__(self, unit: str, place: SweepPlace | None = None) -> None:
        super().__init__(unit, place)
        self._handle: Any = None
        self._shown = ""
        # MLflow imports tqdm's bar for notebooks, which asks for ipywidgets; no such bar is shown
        warnings.filterwarnings("ignore", message="IProgress not found")

    def say(self, text: str) -> None:
        """Print one line of text."""
        print(text, flush=True)

    def _update(self, text: str, fraction: float, details: list[str]) -> None:
        if text != self._shown:
            self.clear()
        self._shown = text
        told = f"{text}: {'  '.join([f'{100 * fraction:.0f} %', *details])}"
        bar = f'<progress max="1" value="{fraction:.3f}"></progress> {html.escape(told)}'
        content = {"text/plain": told, "text/html": bar}
        if self._handle is None:
            self._handle = import_module("IPython.display").display(content, raw=True, display_id=True)
        else:
            self._handle.update(content, raw=True)

    def clear(self) -> None:
        """Leave the progress bar as it is; what is shown next comes below it."""
        self._handle = None
