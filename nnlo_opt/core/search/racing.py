"""Compares a trial with the best one fold by fold, to stop it early if its first folds are hopeless.

A fold is a block in the statistical sense: some folds are harder for every trial. Figures are therefore compared in
pairs, as in the races of Maron and Moore (1994, "Hoeffding races") and Birattari et al. (2002, "F-race"). For two
candidates the test is Student's paired t.
"""

import math
from collections.abc import Mapping

#: finished folds needed for a test
MIN_FOLDS = 2
#: probability, per comparison, of stopping a trial that is as good as the best one
SIGNIFICANCE = 0.05


def race(figures: Mapping[int, float], best: Mapping[int, float], n_fold: int, *, maximise: bool = False) -> float:
    """Return the p-value of paired differences as bad as these, if the trial were as good as the best one.

    Args:
        figures: figure of merit of each finished fold of the trial.
        best: figure of merit of each fold of the best complete trial.
        n_fold: folds of a trial.
        maximise: True if larger figures are better.

    Returns:
        A probability; 1 if there are too few folds or all have finished. Equal differences give 0 if they are bad, else
        1.
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
    """Return P(T > t) for Student's t with `n_degrees` degrees of freedom, by the finite series for integers.

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
