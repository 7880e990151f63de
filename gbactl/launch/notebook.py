"""Progress display of a run that was started from Python: a bar in a notebook, else what a command shows.

The notebook's bar is HTML that is renewed in place; it needs nothing beside IPython.
"""

from __future__ import annotations

import html
import sys
import warnings
from typing import Any

from gbactl.launch.progress import ProgressDisplay


def display(unit: str) -> ProgressDisplay:
    """Make the progress display for where this process runs; `unit`: unit of throughput."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return NotebookDisplay(unit) if hasattr(shell, "kernel") else PythonDisplay(unit)


class PythonDisplay(ProgressDisplay):
    """Display for a script, which gets the result as a value: it is not printed."""

    def result(self, result: dict[str, Any]) -> None:
        """Remove the progress bar."""
        self.clear()


class NotebookDisplay(PythonDisplay):
    """Progress bar in the output of a notebook's cell; everything else is printed there as text."""

    def __init__(self, unit: str) -> None:
        super().__init__(unit)
        self._handle: Any = None
        self._shown = ""
        # MLflow imports tqdm's bar for notebooks, which asks for ipywidgets; no such bar is shown
        warnings.filterwarnings("ignore", message="IProgress not found")

    def say(self, text: str) -> None:
        """Print one line of text."""
        print(text, flush=True)

    def _update(self, text: str, fraction: float, detail: str) -> None:
        from IPython.display import display as show

        if text != self._shown:
            self.clear()
        self._shown = text
        told = f"{text}: {100 * fraction:.0f} %  {detail}".rstrip()
        bar = f'<progress max="1" value="{fraction:.3f}"></progress> {html.escape(told)}'
        content = {"text/plain": told, "text/html": bar}
        if self._handle is None:
            self._handle = show(content, raw=True, display_id=True)
        else:
            self._handle.update(content, raw=True)

    def clear(self) -> None:
        """Leave the progress bar as it is; what is shown next comes below it."""
        self._handle = None
