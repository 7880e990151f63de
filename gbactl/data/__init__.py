"""Click data: read or generated once into a memory-mapped cache, then sliced without parsing.

`prepare` (launcher) builds or reuses a cache directory; `open_dataset` (every process) maps it. Importing
this package costs nothing: the readers and polars are loaded by `prepare` alone.
"""

from __future__ import annotations
