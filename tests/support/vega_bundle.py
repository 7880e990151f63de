"""The script gbactl/report/vega.js, which `make vega` makes anew: Vega-Embed as vl-convert-python has it.

To make it takes seconds of a processor, so that it is a file rather than a part of writing a page. Its licences are the
comment at its head, which stays.
"""

from __future__ import annotations

import re
from pathlib import Path

import vl_convert

PATH = Path("gbactl/report/vega.js")


def main() -> None:
    """Write the script, in ASCII as the pages are."""
    bundle = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
    ascii_only = re.sub(r"[^\x00-\x7f]", lambda found: f"\\u{ord(found[0]):04x}", bundle)
    licences, end, _ = PATH.read_text(encoding="ascii").partition("*/\n")
    PATH.write_text(f"{licences}{end}{ascii_only}\n", encoding="ascii")


if __name__ == "__main__":
    main()
