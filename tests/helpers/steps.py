"""Steps of `CoordinatorState`, what they lead to, and what must hold after each of them."""

import copy
from contextlib import contextmanager
from enum import Enum

from nnlo_opt.core.comm import messages as msg
from nnlo_opt.core.coordinator.ending import Phase
from nnlo_opt.core.coordinator.instructions import Append, FromMaster, Send
from nnlo_opt.core.coordinator.membership import TeamState
from nnlo_opt.core.search.base import Suggestion
from nnlo_opt.core.trials.trial import TrialState


def step(state, event, now_s=1.0):
    instructions = state.handle(event, now_s)
    check(state)
    return instructions


def suggest(state, now_s=1.0, **point):
    return step(state, Suggestion(point=point or None), now_s)


def from_master(state, team, message, now_s=1.0):
    return step(state, FromMaster(team=team, message=message), now_s)


def fold_finished(assignment, figure=0.5, **more):
    result = {"figure_of_merit": figure, "metrics": {"loss": figure}, "n_epochs": 1, "train_s": 2.0}
    return msg.FoldFinished(assignment=assignment, **result | more)


def finish(state, team, assignment, figure=0.5, now_s=1.0, **more):
    return from_master(state, team, fold_finished(assignment, figure, **more), now_s)


def fail(state, team, assignment, reason="no memory"):
    return from_master(state, team, msg.FoldFailed(assignment=assignment, reason=reason))


def stop(state, team, assignment, now_s=1.0):
    return from_master(state, team, msg.FoldStopped(assignment=assignment), now_s)


def events_of(instructions, kind=object):
    return [event for i in of_type(instructions, Append) for event in i.events if isinstance(event, kind)]


def sends_to(instructions, team):
    return [i.message for i in of_type(instructions, Send) if i.team == team]


def of_type(instructions, kind):
    return [i for i in instructions if isinstance(i, kind)]


def all_of(state):
    """Return the fields of the state, of its parts and of the ledger by name, without those that are parts."""
    parts = [value for value in vars(state).values() if type(value).__module__.startswith("nnlo_opt.core.coordinator.")]
    own = {
        name: value
        for part in [state, *parts]
        if hasattr(part, "__dict__")
        for name, value in vars(part).items()
        if isinstance(value, Enum) or not hasattr(value, "__dict__")
    }
    assert {"phase", "trial_of_block", "to_resume", "_unrecorded", "_events", "suggestions"} <= own.keys()
    return copy.deepcopy(own | vars(state.ledger) | vars(state.policy.reports))


@contextmanager
def unchanged(state, apart_from=("_now_s", "_instructions", "_events")):
    """Check that every field is in the end what it was, apart from those, which are of the decision under way."""
    before = all_of(state)
    yield
    assert {name for name, value in all_of(state).items() if value != before[name]} <= {*apart_from}


def check(state):
    """What must always hold of the state."""
    running = {a.number for a in state.ledger.assignments if a.end is None}
    under_way = {a.number for a in state.membership.assignment_of_team.values()}
    is_open = state.phase is not Phase.OPENING  # before, what earlier starts left open is nobody's
    assert running == under_way or not is_open, "assignments under way in the ledger and on the teams differ"
    check_blocks(state.membership, state.topology)
    held = state.membership.trial_of_block.values()
    for trial in state.ledger.trials:
        assert trial.state is not TrialState.PAUSED or not (trial.number in held or trial.running), "paused on a block"
    n_ready = len(state.suggestions.ready)
    n_known = len(state.ledger.trials) + n_ready
    assert not n_ready or n_known <= state.plan.num_iterations, "more suggestions are held than trials may begin"


def check_blocks(blocks, topology):
    """What must always hold of the membership."""
    for team, assignment in blocks.assignment_of_team.items():
        held = blocks.trial_of_block.get(blocks.block_of(team))
        assert held == assignment.trial, "a team runs a trial that its block does not hold"
        assert blocks.states[team] not in (TeamState.LOST, TeamState.SPARE), "a team runs that cannot train"
    held = list(blocks.trial_of_block.values())
    assert len(set(held)) == len(held), "two blocks hold the same trial"
    each = sorted([*blocks.idle, *blocks.trial_of_block, *blocks.out])
    assert each == list(range(1, topology.n_blocks + 1)), "a block is not one of: idle, out, with a trial"
    assert all(map(blocks.ready, blocks.idle)), "a block is idle that cannot train"
