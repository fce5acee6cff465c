"""Steps of `CoordinatorState`, and what they lead to, for the tests of this folder."""

import copy
from enum import Enum

from nnlo_opt.comm import messages as msg
from nnlo_opt.comm.topology import Topology
from nnlo_opt.coordinator import instructions as ins
from nnlo_opt.coordinator import state as st
from nnlo_opt.coordinator.instructions import Begin, Budget, FromMaster, Preempt, SearchPlan, Send, Suggested
from nnlo_opt.trials import events as ev
from nnlo_opt.trials.ledger import Ledger

TWO_BLOCKS = Topology.plan(5, 2)
ONE_BLOCK = Topology.plan(3, 2)
TWO_TEAMS = Topology.plan(5, 4, n_fold=2)


def begin(topology=ONE_BLOCK, ledger=None, **plan):
    state = st.CoordinatorState(SearchPlan(**{"num_iterations": 3} | plan), topology, ledger or Ledger())
    return state, step(state, Begin())


def step(state, event, now_s=1.0):
    instructions = state.handle(event, now_s)
    state.check()
    return instructions


def suggest(state, **point):
    return step(state, Suggested(point=point or None))


def finish(state, team, assignment, figure=0.5, n_epochs=1):
    message = msg.FoldFinished(
        assignment=assignment, figure_of_merit=figure, metrics={"loss": figure}, n_epochs=n_epochs, train_s=2.0
    )
    return step(state, FromMaster(team=team, message=message))


def fail(state, team, assignment, reason="no memory"):
    return step(state, FromMaster(team=team, message=msg.FoldFailed(assignment=assignment, reason=reason)))


def events_of(instructions):
    return [event for i in instructions if isinstance(i, ins.Append) for event in i.events]


def sends_to(instructions, team):
    return [i.message for i in instructions if isinstance(i, Send) and i.team == team]


def of_type(instructions, kind):
    return [i for i in instructions if isinstance(i, kind)]


def restarted(instructions_so_far, topology=ONE_BLOCK, **plan):
    """A new state on the ledger that these instructions' events make."""
    ledger = Ledger()
    for event in events_of(instructions_so_far):
        ledger.apply(event)
    return begin(topology, ledger, **plan)


LATE = FromMaster(team=0, message=msg.FoldStopped(assignment=0))
PREEMPT = Preempt(reason="preempted", grace_s=100.0)


def opening():
    return st.CoordinatorState(SearchPlan(num_iterations=2), ONE_BLOCK, Ledger())


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


def all_of(state):
    """Return the fields of the state, of its parts and of the ledger by name, without those that are parts."""
    parts = [value for value in vars(state).values() if type(value).__module__.startswith("nnlo_opt.coordinator.")]
    own = {
        name: value
        for part in [state, *parts]
        if hasattr(part, "__dict__")
        for name, value in vars(part).items()
        if isinstance(value, Enum) or not hasattr(value, "__dict__")
    }
    assert {"phase", "trial_of_block", "to_resume", "_unrecorded", "_events", "suggestions"} <= own.keys()
    return copy.deepcopy(own | vars(state.ledger) | vars(state.policy.reports))


def session(ledger, time_s=0.0):
    ledger.apply(ev.RunStarted(time_s=time_s, unix_s=time_s, n_ranks=3, n_blocks=1, identity={}))
    return ledger


def with_budget(num_iterations=9, ledger=None, topology=ONE_BLOCK, **budget):
    return begin(topology, session(ledger or Ledger()), num_iterations=num_iterations, budget=Budget(**budget))
