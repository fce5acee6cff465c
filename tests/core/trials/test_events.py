import json
from typing import Any, get_type_hints

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nnlo_opt.core.base.errors import JournalError, UnreadableEventError
from nnlo_opt.core.trials import events as ev
from nnlo_opt.core.trials.journal import decode_line, encode_line
from tests.helpers.any_values import OF_TYPE, by_name, finite, plain
from tests.helpers.effort import examples

BY_TYPE = OF_TYPE | {
    list[dict[str, Any]]: st.lists(  # the observations in a RunStarted
        st.fixed_dictionaries({"point": by_name(plain), "value": finite}), max_size=3
    )
}

EVENT_TYPES = {cls.__name__: cls for cls in ev.Event.__subclasses__()}
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


def read(values):
    return ev.event_from_json(json.dumps(values).encode())


def event_of(cls):
    strategies = {name: BY_TYPE[hint] for name, hint in get_type_hints(cls).items()}
    strategies |= {name: st.floats(0.0, 1e10) for name in ("time_s", "unix_s") if name in strategies}
    if cls is ev.RunStarted:
        strategies["format"] = st.just(ev.JOURNAL_FORMAT)
    return st.builds(cls, **strategies)


@pytest.mark.hypothesis
@pytest.mark.parametrize("cls", EVENT_TYPES.values(), ids=list(EVENT_TYPES))
def test_every_type_of_event_comes_back_from_json_as_it_was(cls):
    @given(event=event_of(cls))
    @settings(max_examples=examples(25), deadline=None)
    def check(event):
        values = json.loads(event.to_json())
        assert next(iter(values.items())) == ("event", cls.__name__)
        assert ev.event_from_json(event.to_json().encode()) == event

    check()


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("identity", {"search_space": {"parameters": [{}]}}),
        ("identity", {"search_space": 3}),
        ("identity", {"objectives": ["a", None]}),
        ("identity", {"n_fold": "2"}),
        ("identity", {"n_fold": 0}),
        ("identity", {"training": {"epochs": "2"}}),
        ("identity", {"search_space": {"parameters": [{"name": "x", "categories": 1}]}}),
        ("settings", {"plan": {"num_iterations": [[]]}}),
        ("unix_s", 1e12),
        ("time_s", -1e15),
        ("n_ranks", 2**63),
        ("identity", {"model": {"name": 7}}),
        ("settings", {"command_line": "OptimizationDriver"}),
        ("adopted", [{"value": 1.0}]),
    ],
)
def test_a_start_whose_settings_no_reader_could_use_is_refused(field, wrong):
    start = {"event": "RunStarted", "time_s": 0.0, "unix_s": 0.0, "n_ranks": 1, "n_blocks": 1, "identity": {}}
    assert read(start)
    with pytest.raises(UnreadableEventError, match=r"Expected|required field"):
        read(start | {field: wrong})


def test_all_events_and_required_fields_of_format_1_stay():
    required = {
        name: {field.name for field in msgspec.structs.fields(cls) if field.required}
        for name, cls in EVENT_TYPES.items()
    }
    assert {name: required.get(name) for name in FORMAT_1} == FORMAT_1
    assert ev.JOURNAL_FORMAT == 1


@pytest.mark.parametrize("name", FORMAT_1)
def test_a_line_with_nothing_but_the_required_fields_is_read(name):
    some = {"point": {"n": 1}, "identity": {}, "metrics": {}, "reason": "r"}
    values = {"event": name} | {field: some.get(field, 1) for field in FORMAT_1[name]}
    assert type(read(values)).__name__ == name


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"event": None, "time_s": 0.0},
        {"event": "TrialBaked", "time_s": 0.0},
        {"event": "Event", "time_s": 0.0},
        {"event": ["TrialFailed"], "time_s": 0.0},
        {"event": "TrialFailed", "time_s": 0.0, "trial": 0, "reason": "r", "mood": "bad"},
        {"event": "TrialFailed", "time_s": 0.0, "trial": None, "mood": "half a pair \udc80"},
        {"time_s": 0.0, "trial": 0, "reason": "r"},
        [],
        7,
        "TrialFailed",
        None,
    ],
    ids=str,
)
def test_what_is_no_event_of_this_version_is_refused_with_a_remedy(values):
    with pytest.raises(JournalError, match="use the version that wrote it"):
        read(values)


@pytest.mark.parametrize(
    "values",
    [
        {"event": "TrialFailed", "time_s": 0.0, "trial": 0},
        {"event": "TrialFailed", "time_s": "0", "trial": 0, "reason": "r"},
        {"event": "TrialFailed", "time_s": 0.0, "trial": 0.5, "reason": "r"},
        {"event": "TrialFailed", "time_s": 0.0, "trial": True, "reason": "r"},
        {"event": "TrialFailed", "time_s": 0.0, "trial": 0, "reason": None},
        {"event": "TrialFailed", "time_s": 1e11, "trial": 0, "reason": "half a pair \udc80"},
        {"event": "TrialSuggested", "time_s": 0.0, "trial": 0, "point": [1]},
        {"event": "FoldBegan", "time_s": 0.0, "assignment": 0, "epoch": -5},
        {"event": "FoldBegan", "time_s": 0.0, "assignment": 0, "epoch": 1e30},
        {"event": "AssignmentPaused", "time_s": 0.0, "assignment": 0, "epoch": {"n": 1}},
    ],
    ids=str,
)
def test_an_event_with_a_value_out_of_its_bounds_is_told_from_one_of_another_version(values):
    with pytest.raises(UnreadableEventError, match="an impossible value"):
        read(values)


#: a value of any kind, and the edges of the bounds
ANY = plain | st.sampled_from(
    [-5, -1, 2**53, 2**53 + 1, 10**400, 1e30, -1e10, 1e10, 1.1e10, 2e11, 2.1e11, float("nan"), True, "\udc80"]
)


def nested(depth):
    value = {}
    for _ in range(depth):
        value = {"in": [value]}
    return value


@given(event=st.sampled_from(list(EVENT_TYPES.values())).flatmap(event_of), data=st.data())
@settings(deadline=None, max_examples=examples(300))
def test_what_the_journal_takes_is_read_back_and_what_would_be_refused_then_is_not_taken(event, data):
    name = data.draw(st.sampled_from(event.__struct_fields__))
    deep = st.integers(1, 2000).map(nested)
    value = data.draw(ANY | deep | by_name(ANY) | st.lists(ANY, max_size=2))
    try:
        written = event.replaced(**{name: value})
    except (ValueError, TypeError, RecursionError, JournalError):
        return  # a start is not even made
    try:
        text = json.dumps(msgspec.structs.asdict(written) | {"event": type(event).__name__}, allow_nan=False).encode()
        expected = ev.event_from_json(text)
    except (ValueError, RecursionError, JournalError):
        expected = None
    try:
        line = encode_line(3, written)
    except (ValueError, JournalError):
        assert expected is None
    else:
        assert decode_line(3, line[:-1]) == expected


def test_half_a_surrogate_pair_in_a_text_is_read_as_it_was_written():
    event = ev.TrialFailed(time_s=1.5, trial=3, reason="no file \udc80.h5")
    assert ev.event_from_json(event.to_json().encode()) == event
    assert ev.events_from_json(f"[{event.to_json()},{event.to_json()}]".encode()) == [event, event]


@pytest.mark.parametrize(
    ("versions", "version"),
    [({"nnlo_opt": "9.9"}, r"9\.9"), ({}, ""), *((other, "unknown") for other in (3, None, [], "9"))],
    ids=repr,
)
def test_a_journal_of_a_later_format_is_refused_with_the_version_that_wrote_it_if_it_is_known(versions, version):
    start = {"event": "RunStarted", "time_s": 0, "unix_s": 0, "n_ranks": 1, "n_blocks": 1, "identity": {}}
    later = ev.JOURNAL_FORMAT + 1
    with pytest.raises(JournalError, match=rf"an older one\. Received: {later}; use .* nnlo_opt {version}"):
        read(start | {"format": later, "settings": {"versions": versions}})


@given(event=st.sampled_from(list(EVENT_TYPES.values())).flatmap(event_of), data=st.data())
@settings(deadline=None, max_examples=examples(200))
def test_an_event_with_one_thing_wrong_is_refused_by_a_journal_error_and_nothing_else(event, data):
    values = json.loads(event.to_json())
    match data.draw(st.sampled_from(["another value", "a field less", "a field more"])):
        case "another value":
            values[data.draw(st.sampled_from(sorted(values)))] = data.draw(plain)
        case "a field less":
            del values[data.draw(st.sampled_from(sorted(values)))]
        case "a field more":
            values[data.draw(st.text(max_size=5))] = data.draw(plain)
    try:
        again = read(values)
    except JournalError:
        return
    # What is read is an event that can be written, and is read as the same again.
    assert read(json.loads(again.to_json())) == again


@given(text=st.binary(max_size=60), value=plain)
def test_what_is_no_json_is_damaged_and_other_json_is_no_event(text, value):
    with pytest.raises(ValueError, match=r"char \d|codec"):
        ev.event_from_json(b"]" + text)
    with pytest.raises(JournalError):
        read(value)
