"""Giving up a trial whose first folds are hopeless: a race against the best trial, fold by fold.

A fold is a block in the statistical sense: some are harder than others for every trial. So figures are compared in
pairs on the same folds, as the races of Maron and Moore (1994, "Hoeffding races") and Birattari et al. (2002,
"F-race") do; between two candidates with paired figures the test is Student's t.
"""

import math
from collections.abc import Mapping

#: folds that must be finished before anything is said
MIN_FOLDS = 2
#: chance of giving up a trial that is in truth as good as the best one, at each comparison
SIGNIFICANCE = 0.05


def race(figures: Mapping[int, float], best: Mapping[int, float], n_fold: int, *, maximise: bool = False) -> float:
    """Chance, 0 to 1, of paired differences as bad as these if the trial were as good as `best`; 1: nothing to say.

    `figures` are those of the folds done so far, by fold; `best` those of the best complete trial. Differences all
    equal and bad have chance 0, all equal and not bad chance 1.
    """
    folds = sorted(figures.keys() & best.keys())
    n = len(folds)
    if not MIN_FOLDS <= n < n_fold:
        return 1.0
    sign = -1.0 if maximise else 1.0
    differences = [sign * (figures[fold] - best[fold]) for fold in folds]
    mean = math.fsum(differences) / n
    variance = math.fsum((difference - mean) ** 2 for difference in differences) / (n - 1)
    if mean <= 0.0:
        return 1.0
    if variance == 0.0:
        return 0.0
    return student_t_tail(mean / math.sqrt(variance / n), n - 1)


def student_t_tail(t: float, n_degrees: int) -> float:
    """P(T > t) for Student's t with `n_degrees` degrees of freedom, by the finite series for whole numbers of them.

    Abramowitz and Stegun, 26.7.3 and 26.7.4.
    """
    theta = math.atan(t / math.sqrt(n_degrees))
    cosine2 = math.cos(theta) ** 2
    odd = n_degrees % 2
    term = total = 0.0
    for k in range(n_degrees // 2):
        term = term * cosine2 * ((2 * k) / (2 * k + 1) if odd else (2 * k - 1) / (2 * k)) if k else 1.0
        total += term
    if odd:
        inside = 2 / math.pi * (theta + math.sin(theta) * math.cos(theta) * total)
    else:
        inside = math.sin(theta) * total
    return (1.0 - inside) / 2
