"""Rules that average replicas of one dense vector, following the ideas of EASGD, model averaging and BMUF.

Pure arithmetic on float32 vectors: no torch, no I/O, no clock. A rule gets (replica, centre or mean) and writes both;
it does not know where it runs (a background thread, the foreground every k iterations, virtual time).
To add one: a file here with a `@register("name")` class, five lines a mode in policies/replica_modes.py (which may
import none of this) and a file in conf/mode/, one test. tests/unit/replicas/test_new_rule.py does it.
"""

from __future__ import annotations

from gbactl.replicas.base import AveragingRule, make

__all__ = ["AveragingRule", "make"]
