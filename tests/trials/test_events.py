import json
from dataclasses import MISSING, fields
from typing import Any, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nnlo_opt.errors import JournalError
from nnlo_opt.trials import events as ev

finite = st.floats(allow_nan=False, allow_infinity=False)
plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | finite | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
BY_TYPE = {
    int: st.integers(-1, 2**40),
    float: finite,
    str: st.text(max_size=40),
    bool: st.booleans(),
    float | None: st.none() | finite,
    list[int]: st.lists(st.integers(0, 2**40), max_size=4),
    dict[str, Any]: st.dictionaries(st.text(max_size=8), plain, max_size=4),
    list[dict[str, Any]]: st.lists(st.dictionaries(st.text(max_size=8), plain, max_size=3), max_size=3),
    dict[str, float]: st.dictionaries(st.text(max_size=8), finite, max_size=4),
}

#: what format 1 requires of a line; a field added later has a default and is not among these
FORMAT_1 = {
    "RunStarted": {"time_s", "unix_s", "n_ranks", "n_blocks", "identity"},
    "TrialSuggested": {"time_s", "trial", "point"},
    "FoldAssigned": {"time_s", "assignment", "trial", "fold", "attempt", "block", "team", "n_ranks"},
    "FoldBegan": {"time_s", "assignment"},
    "EpochEnded": {"time_s", "assignment", "epoch", "metrics"},
    "AssignmentFinished": {"time_s", "assignment", "figure_of_merit", "metrics", "n_epochs", "train_s"},
    "AssignmentFailed": {"time_s", "assignment", "reason"},
    "AssignmentStopped": {"time_s", "assignment"},
    "AssignmentLost": {"time_s", "assignment"},
    "TrialCompleted": {"time_s", "trial", "figure_of_merit", "figure_of_merit_std"},
    "TrialFailed": {"time_s", "trial", "reason"},
    "RunCompleted": {"time_s", "reason"},
}


def event_of(cls):
    strategies = {name: BY_TYPE[hint] for name, hint in get_type_hints(cls).items()}
    if cls is ev.RunStarted:
        strategies["format"] = st.just(ev.JOURNAL_FORMAT)
    return st.builds(cls, **strategies)


@pytest.mark.parametrize("cls", ev.EVENT_TYPES.values(), ids=list(ev.EVENT_TYPES))
def test_every_type_of_event_comes_back_from_json_as_it_was(cls):
    @given(event=event_of(cls))
    @settings(max_examples=25, deadline=None)
    def check(event):
        values = json.loads(json.dumps(ev.event_to_json(event)))
        assert next(iter(ev.event_to_json(event))) == "event"
        assert ev.event_from_json(values) == event
        assert values["event"] == cls.__name__  # what was read is left as it was

    check()


def test_all_events_and_required_fields_of_format_1_stay():
    required = {
        name: {f.name for f in fields(cls) if f.default is MISSING and f.default_factory is MISSING}
        for name, cls in ev.EVENT_TYPES.items()
    }
    assert {name: required.get(name) for name in FORMAT_1} == FORMAT_1
    assert ev.JOURNAL_FORMAT == 1


@pytest.mark.parametrize("name", FORMAT_1)
def test_a_line_with_nothing_but_the_required_fields_is_read(name):
    some = {"point": {"n": 1}, "identity": {}, "metrics": {}, "reason": "r"}
    values = {"event": name} | {field: some.get(field, 1) for field in FORMAT_1[name]}
    assert type(ev.event_from_json(values)).__name__ == name


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"event": None, "time_s": 0.0},
        {"event": "TrialBaked", "time_s": 0.0},
        {"event": "Event", "time_s": 0.0},
        {"event": ["TrialFailed"], "time_s": 0.0},
        {"event": "TrialFailed", "time_s": 0.0, "trial": 0},
        {"event": "TrialFailed", "time_s": 0.0, "trial": 0, "reason": "r", "mood": "bad"},
        {"time_s": 0.0, "trial": 0, "reason": "r"},
    ],
    ids=str,
)
def test_what_is_no_event_of_this_version_is_refused_with_a_remedy(values):
    with pytest.raises(JournalError, match="use the version that wrote it"):
        ev.event_from_json(values)


def test_a_journal_of_a_later_format_is_refused_with_the_version_that_wrote_it():
    start = ev.RunStarted(time_s=0.0, unix_s=0.0, n_ranks=1, n_blocks=1, identity={})
    later = ev.event_to_json(start) | {"format": ev.JOURNAL_FORMAT + 1, "settings": {"versions": {"nnlo_opt": "9.9"}}}
    with pytest.raises(JournalError, match=rf"Received: {ev.JOURNAL_FORMAT + 1}; use .* nnlo_opt 9\.9"):
        ev.event_from_json(later)
