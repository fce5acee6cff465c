"""Part of docs/scaling.md about momentum and old gradients, made from the output of `momentum.py`."""

import statistics
from itertools import groupby
from typing import Any

from scaling_search import table, wrapped

from nnlo_opt.core.update_rules.staleness import explicit_momentum

TEXT = """### Accuracy: momentum and old gradients

In asynchronous Downpour with n workers, a gradient is on average n - 1 versions old when it is applied. Stale gradients
act like an additional momentum of 1 - 1/n (arXiv:1605.09774). `--momentum-correction` subtracts it from the requested
momentum, using the measured staleness (`nnlo_opt/core/update_rules/staleness.py`).

`python benchmarks/training/momentum.py` trained an MLP on 4,000 real digits: {epochs} epochs, the first {warmup} with a
rising learning rate, then a cosine, batches of {batch}, SGD with momentum {momentum}, learning rate {rate:g}.
Gradients, update rule, staleness and schedule are real. Batch times are simulated, so that equal seeds give equal
trainings on any machine: *even*, varying by 20 %, or *exponential*, as in the theory. The accuracy is that of the last
epoch in percent, on 1,000 other digits: median (minimum to maximum).

"""
END = """One worker with other learning rates (`python benchmarks/training/momentum.py --tune`, medians of 3): {rates}.

With the correction, 8 workers end {even_True} points below one worker with even times, and {exponential_True} with
exponential times ({spread} below the training of one worker with the same seed); without it, {even_False} and
{exponential_False}. Corrected momentum takes shorter steps, so 8 workers need more epochs than one, as the picture
shows.

8 real workers that wait {wait:g} ms per batch, as for a device, reached {plain:.1f} without the correction and
{corrected:.1f} with it (`benchmarks/training/momentum.py --ranks 8`, one training each, on another split of the same
digits).

![Error against workers and epochs, with the correction and without](momentum.svg)"""


def momentum_part(found: dict[str, Any], tuned: dict[str, Any], real: dict[str, Any]) -> str:
    """Markdown, a section of the third level."""
    asked, rows = found["momentum"], []
    one = median_end(trainings_of(found, 1))
    kinds = groupby(found["trainings"], lambda t: (t["workers"], t["times"], t["corrected"]))
    for (n, times, corrected), group in kinds:
        trainings = list(group)
        age = statistics.median(t["staleness"] for t in trainings)
        ends = [t["accuracy"][-1] for t in trainings]
        shown = f"{statistics.median(ends):.1f} ({min(ends):.1f} to {max(ends):.1f})"
        used = f"{explicit_momentum(asked, age) if corrected else asked:.2f}"
        above = f"{statistics.median(ends) - one:+.1f}"
        rows.append([n, times, len(ends), f"{age:.1f}", "yes" if corrected else "no", used, shown, above])
    head = ["workers", "times", "trainings", "staleness", "corrected", "optimizer's momentum", "accuracy"]
    by_rate = groupby(tuned["trainings"], lambda t: t["rate"])
    rates = ", ".join(f"{median_end(list(group)):.1f} at {rate:g}" for rate, group in by_rate)
    settings = {name: found[name] for name in ("epochs", "warmup", "batch", "momentum")}
    settings |= {"rate": found["trainings"][0]["rate"]}
    rows = [[str(cell) for cell in row] for row in rows]
    below = {
        f"{times}_{corrected}": one - median_end(trainings_of(found, 8, corrected, times))
        for times in ("even", "exponential")
        for corrected in (False, True)
    }
    pairs = zip(trainings_of(found, 1), trainings_of(found, 8, True, "exponential"), strict=True)
    gaps = [alone["accuracy"][-1] - together["accuracy"][-1] for alone, together in pairs]
    plain, corrected = (training["accuracy"][-1] for training in real["trainings"])
    by_ranks: dict[str, Any] = {"spread": f"{min(gaps):.1f} to {max(gaps):.1f}"}
    by_ranks |= {"wait": real["wait_ms"], "plain": plain, "corrected": corrected}
    end = wrapped(END, rates=rates, **by_ranks, **{name: f"{points:.1f}" for name, points in below.items()})
    return f"{wrapped(TEXT, **settings).rstrip()}\n\n{table([*head, 'against one worker'], rows)}\n{end}\n"


def trainings_of(found: dict[str, Any], n_workers: int, corrected: bool = False, times: str = "even") -> list[Any]:
    """The trainings of a kind; one worker has nothing to be corrected."""
    kind = n_workers, corrected and n_workers > 1, times
    return [t for t in found["trainings"] if (t["workers"], t["corrected"], t["times"]) == kind]


def median_end(trainings: list[Any]) -> float:
    """Median of the accuracies at the end."""
    return statistics.median(t["accuracy"][-1] for t in trainings)
