"""What a node turns away: counted by reason, and logged ever more rarely, so that nobody can fill memory or disk."""

from __future__ import annotations

import logging
from collections import Counter

MOST_REASONS = 64  # what differs more is counted together
MOST_LINES = 16  # of one reason that are logged one by one; from there on every time the count has doubled
OTHER = "for other reasons"
log = logging.getLogger(__name__)


class Refusals(Counter[str]):
    """How often, by reason."""

    def note(self, reason: str) -> None:
        """Something was turned away."""
        if reason not in self and len(self) >= MOST_REASONS:
            reason = OTHER
        self[reason] += 1
        count = self[reason]
        if count <= MOST_LINES or not count & (count - 1):
            log.warning("refused %s%s", reason, "" if count <= MOST_LINES else f" ({count} times by now)")
