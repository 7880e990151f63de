"""One module a file format; each holds its options, the fast parse and the explanation of a bad line."""

from __future__ import annotations
