"""Verdict on each row of the table: the same as the baseline, better, worse, or undecided. Pure.

Two tests on the same paired differences. Equivalence: two one-sided t tests (TOST), which reject a true difference as
large as the margin; at 5 % the same as a 90 % interval within the margin. Difference: a paired t test with Holm's
correction over all compared lines. A line that passes both differs by less than the margin, and counts as the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gbactl.errors import UsageError
from gbactl.report.columns import Column
from gbactl.report.paired_statistics import Difference

LEVEL, POWER = 0.05, 0.8
CONFIDENCE = 0.8  # that the deviation for which a number of seeds is planned is at least the true one
AUC_MARGIN = 0.0005
MOST_SEEDS = 1000
SAME, UNDECIDED = "same", "undecided"
BETTER, WORSE, HIGHER, LOWER = "better", "worse", "higher", "lower"
_BETTER = {"auc": 1, "gauc": 1, "eps": 1, "logloss": -1, "ne": -1}
_QUANTILES = 1000  # points of the integral over the sample deviation


@dataclass(frozen=True)
class Verdict:
    """Verdict on a row of the table in words, and the p values behind it.

    `kind`: SAME (by the TOST), BETTER or WORSE (by the corrected t test; HIGHER or LOWER where neither is better), or
    UNDECIDED. `p`: paired t test; `p_holm`: the same with Holm's correction; `p_same`: TOST; None where not computed.
    `seeds`: how many seeds to plan for a decision, where the line is undecided and these are at most MOST_SEEDS: by the
    t test where the observed difference is above the margin, else by the TOST.
    """

    kind: str
    words: str
    p: float | None = None
    p_holm: float | None = None
    p_same: float | None = None
    seeds: int | None = None


@dataclass(frozen=True)
class Scale:
    """Scale on which the compared metric is tested.

    `better`: 1 if more is better, -1 if less is, 0 if neither. `relative`: differences are shares of the baseline's
    value. `margin`: largest difference that counts as none, on this scale; None: sameness is not tested.
    """

    column: Column
    better: int
    relative: bool
    margin: float | None

    def pairs(self, pairs: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
        """Convert pairs of (reference, compared) values to this scale."""
        return [(1.0, ours / theirs) for theirs, ours in pairs] if self.relative else list(pairs)

    def write(self, value: float, sign: str = "") -> str:
        """Format a number on this scale; `sign`: "+" to write the sign of positive numbers, too."""
        return f"{100 * value:{sign}z.1f} %" if self.relative else self.column.write(value, sign)

    def write_margin(self) -> str:
        """Format the margin."""
        margin = self.margin or 0.0
        return f"{100 * margin:g} %" if self.relative else f"{margin:g}"


def scale_of(column: Column, margin: float | None) -> Scale:
    """Choose the scale of the compared metric; without `margin`, an AUC has a default margin, others have none.

    Raises UsageError for a margin that is not above 0, or not finite."""
    if margin is not None and not 0 < margin < math.inf:
        raise UsageError(f"margin={margin:g} is not a finite number above 0; give one, such as {AUC_MARGIN:g}.")
    family = column.metrics[0].split("/")[0].split("_")[-1]
    default = AUC_MARGIN if family in ("auc", "gauc") else None
    return Scale(column, _BETTER.get(family, 0), family == "eps", default if margin is None else margin)


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjust p values by Holm's step-down procedure; all that are at most LEVEL can be rejected together."""
    adjusted, most = [0.0] * len(p_values), 0.0
    for rank, place in enumerate(sorted(range(len(p_values)), key=lambda place: p_values[place])):
        most = max(most, min(1.0, (len(p_values) - rank) * p_values[place]))
        adjusted[place] = most
    return adjusted


def p_of(difference: Difference) -> float:
    """Compute the two-sided p value of a paired t test; needs two pairs."""
    return min(1.0, 2 * _upper(abs(difference.mean), difference))


def p_same_of(difference: Difference, margin: float) -> float:
    """Compute the p value of the TOST that the true difference lies within ±margin; needs two pairs."""
    return _upper(margin - abs(difference.mean), difference)


def _upper(distance: float, difference: Difference) -> float:
    """Compute the upper tail of Student's t at a distance from the mean; without any deviation it is 0 or 1."""
    from scipy.stats import t  # type: ignore[import-untyped]

    if not difference.sd:
        return 0.0 if distance > 0 else 1.0
    return float(t.sf(distance * math.sqrt(difference.n) / difference.sd, difference.n - 1))


def planned_deviation(difference: Difference) -> float:
    """Compute the deviation for which to plan a number of seeds: the upper confidence limit of the observed deviation.

    From few seeds the observed deviation is below the true one in more than every second case, and a number of seeds
    computed from it too small (Browne 1995). Needs two pairs."""
    from scipy.stats import chi2

    freedom = difference.n - 1
    return (difference.sd or 0.0) * math.sqrt(freedom / chi2.ppf(1 - CONFIDENCE, freedom))


def power_of(seeds: int, sd: float, margin: float) -> float:
    """Compute the probability that the TOST shows sameness with `seeds` seeds if there is no true difference."""
    import numpy as np
    from scipy.stats import chi2, norm, t

    freedom = seeds - 1
    observed = np.sqrt(chi2.ppf((np.arange(_QUANTILES) + 0.5) / _QUANTILES, freedom) / freedom)  # deviation over sd
    room = margin * math.sqrt(seeds) / sd - t.ppf(1 - LEVEL, freedom) * observed
    return float(np.mean(np.maximum(0.0, 2 * norm.cdf(room) - 1)))


def seeds_needed(sd: float, margin: float) -> int | None:
    """Compute the smallest number of seeds for which the TOST has POWER; None above MOST_SEEDS.

    With as many, a paired t test detects a difference of one margin with about the same power."""
    return _fewest(lambda seeds: power_of(seeds, sd, margin))


def seeds_to_detect(mean: float, sd: float, lines: int) -> int | None:
    """Compute the smallest number of seeds for which a paired t test has POWER; None above MOST_SEEDS.

    `mean`, `sd`: true difference and its deviation; `lines`: compared lines, of which this one may have the smallest
    p value (Holm)."""
    from scipy.stats import nct, t

    def power(seeds: int) -> float:
        away, freedom = abs(mean) * math.sqrt(seeds) / sd, seeds - 1
        return float(nct.sf(t.isf(LEVEL / lines / 2, freedom), freedom, away))

    return _fewest(power)


def _fewest(power: Callable[[int], float]) -> int | None:
    low, high = 1, MOST_SEEDS  # too few; enough
    if not power(high) >= POWER:
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if power(middle) >= POWER else (middle, high)
    return high


def verdicts(differences: Sequence[Difference | None], scale: Scale, baseline: str) -> list[Verdict | None]:
    """Give the verdict on each row from its difference to the baseline, on the given scale.

    None for a line without a difference."""
    p_values = [None if each is None or each.n == 1 else p_of(each) for each in differences]
    tested = [p for p in p_values if p is not None]
    adjusted = iter(holm(tested))
    made: list[Verdict | None] = []
    for each, p in zip(differences, p_values, strict=True):
        if each is None:
            made.append(None)
        elif p is None:
            made.append(Verdict(UNDECIDED, "cannot tell, one seed"))
        else:
            made.append(_verdict(each, scale, baseline, p, next(adjusted), len(tested)))
    return made


def _verdict(difference: Difference, scale: Scale, baseline: str, p: float, p_holm: float, lines: int) -> Verdict:
    half, title = f"±{scale.write(difference.half or 0.0)}", scale.column.title
    found = f"{title} {scale.write(difference.mean, '+')} {half}"
    p_same = None if scale.margin is None else p_same_of(difference, scale.margin)
    if p_same is not None and p_same <= LEVEL:
        return Verdict(SAME, f"{SAME} as {baseline} ({found}, margin {scale.write_margin()})", p, p_holm, p_same)
    if p_holm <= LEVEL:
        way = _way(difference.mean, scale.better)
        words = f"{way} by {scale.write(abs(difference.mean))} {half}"
        return Verdict(way, f"{words} ({title}, p {_short(p_holm)})", p, p_holm, p_same)
    if scale.margin is None:
        return Verdict(UNDECIDED, f"cannot tell without --margin ({found})", p, p_holm)
    sd = planned_deviation(difference)
    apart = abs(difference.mean) > scale.margin  # more seeds will rather show a difference than sameness
    seeds = seeds_to_detect(difference.mean, sd, lines) if apart else seeds_needed(sd, scale.margin)
    known = seeds if seeds is not None and seeds > difference.n else None  # a number that could not decide is no answer
    most = MOST_SEEDS if seeds is None else difference.n
    needed = f"more than {most:,}" if known is None else f"about {known}"
    words = f"cannot tell, {needed} seeds needed ({found}, margin {scale.write_margin()})"
    return Verdict(UNDECIDED, words, p, p_holm, p_same, known)


def _way(difference: float, better: int) -> str:
    """Return the word for a difference: better or worse, or higher or lower if neither is better."""
    if not better:
        return HIGHER if difference > 0 else LOWER
    return BETTER if difference * better > 0 else WORSE


def _short(p: float) -> str:
    return "below 0.0001" if p < 0.0001 else f"{p:.2g}"
