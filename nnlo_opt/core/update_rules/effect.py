"""Measures on a few weights whether options change the steps of an update rule: custom rules do not declare it."""

import numpy as np

from nnlo_opt.core.update_rules.layers import layers_of
from nnlo_opt.core.update_rules.rule import Answer, RuleOptions, UpdateRule
from nnlo_opt.core.update_rules.vectors import FloatVector

_N_WEIGHTS, _N_UPDATES = 3, 2
#: batches per sync period, enough to see local steps
_N_BATCHES = 2


def have_same_steps(rule: UpdateRule, one: RuleOptions, other: RuleOptions) -> bool | None:
    """Return True if `rule` takes the same steps with both options; None if it fails or is not deterministic."""
    try:
        first, again, second = (_weights_after(rule, options) for options in (one, one, other))
    except (Exception, SystemExit):  # user code; the run will report the error
        return None
    return np.array_equal(first, second) if np.array_equal(first, again) else None


def _weights_after(rule: UpdateRule, options: RuleOptions) -> FloatVector:
    """Return the central weights and those of one worker after a few updates."""
    central = np.linspace(-1, 1, _N_WEIGHTS, dtype=np.float32)
    worker, master = rule.worker_half(options, _N_WEIGHTS), rule.master_half(options, _N_WEIGHTS, 1)
    for half in (worker, master):
        half.take_layers(layers_of([("weights", (_N_WEIGHTS,))]))
    worker.adopt(Answer.WEIGHTS, central.copy())
    for number in range(1, 1 + _N_UPDATES):
        for batch in range(min(options.sync_every, _N_BATCHES)):
            worker.gradient[:] = np.array([0.5, -1.0, 2.0], np.float32) * (number + batch)
            worker.step(1)
        update = worker.finish().copy()
        if rule.averages_every_batch:
            master.apply_round(central, [(1, update)])
        else:
            master.apply(central, update, 1.0)
        if master.answers != Answer.NOTHING:
            worker.adopt(master.answers, update if master.answers == Answer.DIFFERENCE else central.copy())
    return np.concatenate([central, worker.weights])
