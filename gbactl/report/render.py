"""A report in one of the formats."""

from __future__ import annotations

from gbactl.report.compare import Report
from gbactl.report.grid import sentences

FORMATS = ("table", "md", "csv", "tex", "html", "json")


def render(report: Report, form: str, width: int = 80, colour: bool = False) -> str:
    """The report as text; `width` and `colour` are for the table alone."""
    from gbactl.report import markup
    from gbactl.report.text import text

    if form == "table":
        return text(report, width, colour)
    renderers = {
        "md": markup.markdown,
        "csv": markup.csv,
        "tex": markup.tex,
        "html": markup.html,
        "json": markup.json,
    }
    return renderers[form](report)


def beside(report: Report, form: str) -> list[str]:
    """Sentences that have no place in the format and belong on stderr."""
    return sentences(report) if form == "csv" else []
