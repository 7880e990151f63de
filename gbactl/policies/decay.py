"""Decay f(staleness) of a stale gradient's weight, following the idea of GBA."""

from __future__ import annotations


def hard(excess: float, _rate: float) -> float:
    """Decay to 0 past iota; 1 up to it."""
    return 1.0 if excess <= 0 else 0.0


def inverse(excess: float, _rate: float) -> float:
    """Decay as 1 / (1 + excess)."""
    return 1.0 / (1.0 + max(0.0, excess))


def exponential(excess: float, rate: float) -> float:
    """Decay as rate ** excess."""
    return float(rate ** max(0.0, excess))


DECAYS = {"hard": hard, "inverse": inverse, "exp": exponential}


def weight(decay: str, staleness: int, iota: float, rate: float) -> float:
    """Weight in [0, 1] of a gradient whose token is `staleness` steps old."""
    return DECAYS[decay](staleness - iota, rate)
