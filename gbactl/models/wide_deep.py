"""Wide & Deep: first-order weights beside an MLP over the embedding vectors."""

from __future__ import annotations

from gbactl.models.base import ClickModel


class WideDeep(ClickModel):
    """The base model as it is: the wide part is the first-order part (no crossed features)."""
