"""Starts of `CoordinatorState` in each of its phases, for the tests of this folder."""

from nnlo_opt.core.comm import messages as msg
from nnlo_opt.core.comm.topology import Topology
from nnlo_opt.core.coordinator.ending import Phase
from nnlo_opt.core.coordinator.instructions import Begin, Budget, FromMaster, Preempt, SearchPlan
from nnlo_opt.core.coordinator.state import CoordinatorState
from nnlo_opt.core.trials import events as ev
from nnlo_opt.core.trials.ledger import Ledger
from nnlo_opt.core.trials.trial import Assignment
from tests.helpers.steps import events_of, finish, step, suggest

TWO_BLOCKS = Topology.plan(5, 2)
ONE_BLOCK = Topology.plan(3, 2)
TWO_TEAMS = Topology.plan(5, 4, n_fold=2)
LATE = FromMaster(team=0, message=msg.FoldStopped(assignment=0))
PREEMPT = Preempt(reason="preempted", grace_s=100.0)


def assignment_of(**fields):
    """An assignment of fold 0 of trial 0 to the first team, apart from these fields."""
    numbers = {"number": 0, "trial": 0, "fold": 0, "attempt": 1, "block": 1, "team": 0, "n_ranks": 2}
    return Assignment(**{"assigned_at_s": 0.0} | numbers | fields)


def not_begun(topology=ONE_BLOCK, ledger=None, **plan):
    return CoordinatorState(SearchPlan(**{"num_iterations": 3} | plan), topology, ledger or Ledger())


def begin(topology=ONE_BLOCK, ledger=None, **plan):
    state = not_begun(topology, ledger, **plan)
    return state, step(state, Begin())


def restarted(instructions_so_far, topology=ONE_BLOCK, **plan):
    """A new state on the ledger that these instructions' events make."""
    return begin(topology, Ledger(events_of(instructions_so_far)), **plan)


def with_trials(n_trials, topology=ONE_BLOCK, **plan):
    """A search to which so many points have been suggested, 0, 1 and so on."""
    state, _ = begin(topology, **plan)
    for n in range(n_trials):
        suggest(state, n=n)
    return state


def searching():
    return begin()[0]


def draining():
    state, _ = begin(num_iterations=1)
    suggest(state, n=1)
    return state


def over():
    state = draining()
    finish(state, 0, 0)
    return state


#: how to get into each phase
PHASES = {Phase.OPENING: not_begun, Phase.SEARCHING: searching, Phase.DRAINING: draining, Phase.OVER: over}


def session(time_s=0.0):
    return ev.RunStarted(time_s=time_s, unix_s=time_s, n_ranks=3, n_blocks=1, identity={})


def with_budget(num_iterations=9, pruning=None, **budget):
    """A search with these limits, whose first start has begun."""
    ledger = Ledger([session()])
    return begin(ledger=ledger, num_iterations=num_iterations, pruning=pruning, budget=Budget(**budget))
