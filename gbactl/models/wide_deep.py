"""Wide & Deep: first-order weights beside an MLP over the embedding vectors."""

from __future__ import annotations

from gbactl.models.base import ClickModel


class WideDeep(ClickModel):
    """Wide & Deep: the base model unchanged; the wide part is its first-order part (no crossed features)."""
