import json
import math
import re
import struct
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import nnlo_opt
from nnlo_opt.core.base.errors import ProtocolError
from nnlo_opt.core.base.vectors import ALIGNMENT_BYTES, aligned_bytes
from nnlo_opt.core.comm import messages as msg
from nnlo_opt.core.comm.codec import decode, encode, from_json
from nnlo_opt.core.comm.run_messages import Inspected
from nnlo_opt.core.trials.identity import ScriptFolders
from nnlo_opt.core.update_rules.rule import Answer
from tests.helpers.any_values import OF_TYPE, by_name, finite, plain
from tests.helpers.effort import examples

MESSAGE_TYPES = {cls.__name__: cls for cls in (*msg.Message.__subclasses__(), *msg.AssignmentMessage.__subclasses__())}
del MESSAGE_TYPES["AssignmentMessage"]
BY_TYPE = OF_TYPE | {
    dict[str, Any] | None: st.none() | by_name(plain),
    dict[str, float] | None: st.none() | by_name(finite),
    dict[str, list[float]]: by_name(st.lists(finite, max_size=2)),
    Answer: st.sampled_from(Answer),
    list[dict[str, Any]]: st.lists(by_name(plain), max_size=2),
    list[Any]: st.lists(plain, max_size=2),
    list[str]: (words := st.lists(word := st.text(max_size=3), max_size=3)),
    dict[str, str]: by_name(word),
    list[tuple[int, int]]: st.lists(st.tuples(number := st.integers(0, 2**53), number), max_size=2),
    ScriptFolders: st.builds(ScriptFolders, kind=word, start=word, names=words, own=words),
}


def message_of(cls):
    hints = get_type_hints(cls)
    fields = {name: BY_TYPE[hint] for name, hint in hints.items() if hint in BY_TYPE}
    if fields.keys() < hints.keys():  # a sub-master's message holds those of its workers
        assert hints["workers"] == dict[int, cls]
        fields["workers"] = st.dictionaries(st.integers(1, 9), st.builds(cls, **fields), max_size=2)
    return st.builds(cls, **fields)


messages = st.sampled_from(sorted(MESSAGE_TYPES)).flatmap(lambda name: message_of(MESSAGE_TYPES[name]))
payloads = st.none() | st.lists(st.floats(width=32), max_size=70).map(lambda xs: np.array(xs, np.float32))
EXAMPLE = msg.RunFold(assignment=3, trial=2, fold=1, attempt=1, point={"n": 4, "x": 0.5, "a": None})


def frame(body, *, n_json=None, offset=0, tail=b""):
    """A buffer as a faulty sender might have made it."""
    head = struct.pack("<II", len(body) if n_json is None else n_json, offset)
    return np.frombuffer(head + body + tail, np.uint8)


@pytest.mark.hypothesis
@pytest.mark.parametrize("cls", MESSAGE_TYPES.values(), ids=list(MESSAGE_TYPES))
def test_every_type_of_message_comes_back_as_it_was(cls):
    @given(message=message_of(cls))
    @settings(max_examples=examples(20), deadline=None)
    def check(message):
        decoded, payload = decode(encode(message))
        assert decoded == message
        assert type(decoded) is cls
        assert payload is None

    check()


@given(message=messages, payload=payloads)
@settings(deadline=None)
def test_a_payload_comes_back_bit_by_bit_and_aligned(message, payload):
    buffer = encode(message, payload)
    decoded, received = decode(buffer)
    assert decoded == message
    if payload is None:
        assert received is None
        return
    assert received.dtype == np.float32
    assert received.tobytes() == payload.tobytes()
    assert received.ctypes.data % ALIGNMENT_BYTES == 0 or not received.size
    assert np.shares_memory(received, buffer) or not received.size


def test_a_payload_of_no_values_is_not_the_same_as_none():
    assert decode(encode(EXAMPLE))[1] is None
    assert decode(encode(EXAMPLE, np.zeros(0, np.float32)))[1].shape == (0,)


def test_a_payload_is_aligned_behind_json_of_any_length_in_any_aligned_buffer():
    payload = np.arange(5, dtype=np.float32)
    for n in range(300, 700):
        encoded = encode(Inspected(error="x" * n), payload)
        buffer = aligned_bytes(encoded.size)
        buffer[:] = encoded
        received = decode(buffer)[1]
        assert received.ctypes.data % ALIGNMENT_BYTES == 0
        assert received.tobytes() == payload.tobytes()


def test_a_payload_is_copied_when_it_is_encoded():
    payload = np.ones(8, np.float32)
    buffer = encode(EXAMPLE, payload)
    payload[:] = 7
    assert decode(buffer)[1].tolist() == [1.0] * 8


def test_every_second_value_of_a_vector_travels_too():
    payload = np.arange(10, dtype=np.float32)[::2]
    assert decode(encode(EXAMPLE, payload))[1].tolist() == [0, 2, 4, 6, 8]


def test_text_of_any_kind_travels():
    reason = 'quotes " backslash \\ newline \n nul \0 snow ☃ undecodable \udc80'
    assert decode(encode(msg.FoldFailed(assignment=0, reason=reason)))[0].reason == reason


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_figure_that_is_not_finite_never_travels(value):
    finished = msg.FoldFinished(assignment=0, figure_of_merit=value, metrics={}, n_epochs=1, train_s=1.0)
    reported = msg.EpochReported(assignment=0, epoch=1, metrics={"loss": value})
    for message in (finished, reported):
        with pytest.raises(ProtocolError, match="cannot be sent"):
            encode(message)


@pytest.mark.parametrize(
    "value", [np.float32(1), np.zeros(2), {1, 2}, b"bytes", object()], ids=lambda v: type(v).__name__
)
def test_what_is_not_plain_data_never_travels(value):
    with pytest.raises(ProtocolError, match="not plain"):
        encode(msg.RunFold(assignment=0, trial=0, fold=0, attempt=1, point={"x": value}))


def test_data_that_holds_itself_never_travels():
    point = {"x": []}
    point["x"].append(point)
    with pytest.raises(ProtocolError, match="cannot be sent"):
        encode(msg.RunFold(assignment=0, trial=0, fold=0, attempt=1, point=point))


@pytest.mark.parametrize("payload", [np.zeros(3), np.zeros((2, 2), np.float32), np.zeros(3, np.int32)])
def test_a_payload_that_is_no_float32_vector_is_refused(payload):
    with pytest.raises(ProtocolError, match="float32 vector"):
        encode(EXAMPLE, payload)


@given(data=st.binary(max_size=200))
def test_garbage_is_refused(data):
    with pytest.raises(ProtocolError, match="not one of our messages"):
        decode(np.frombuffer(data, np.uint8))


GOOD_BODY = json.dumps({"message": "Shutdown", "exit_code": 0}).encode()


@pytest.mark.parametrize(
    "buffer",
    [
        frame(b""),
        frame(b"5"),
        frame(b"null"),
        frame(b'"Shutdown"'),
        frame(b"{}"),
        frame(b"[" + GOOD_BODY + b"]"),
        frame(GOOD_BODY + b" 1"),
        frame(GOOD_BODY * 2),
        frame(b'{"message":"Shutdown"}'),
        frame(b'{"exit_code":0}'),
        frame(b'{"message":"Shutdown","exit_code":0,"more":1}'),
        frame(b'{"message":"Shutdown","exit_code":null}'),
        frame(b'{"message":"Shutdown","exit_code":"0"}'),
        frame(b'{"message":"Shutdown","exit_code":0.0}'),
        frame(b'{"message":"Shutdown","exit_code":true}'),
        frame(b'{"message":"Shutdown","exit_code":[0]}'),
        frame(b'{"message":"Message"}'),
        frame(b'{"message":"os.system","command":"true"}'),
        frame(b'{"message":["Shutdown"],"exit_code":0}'),
        frame(b'{"message":{},"exit_code":0}'),
        frame(b'{"message":"Judged","assignment":0,"figure_of_merit":null}'),
        frame(b'{"message":"Judged","assignment":0,"figure_of_merit":NaN}'),
        frame(b'{"message":"Judged","assignment":0,"figure_of_merit":-Infinity}'),
        frame(b'{"message":"Judged","assignment":0,"figure_of_merit":1e999}'),
        frame(b'{"message":"FoldFailed","assignment":0,"reason":"\\udc80","world_rank":"a"}'),
        frame(b'{"message":"FoldFailed","assignment":0,"reason":"\\udc80","world_rank":NaN}'),
        frame(b"\xff\xfe"),
        frame(b"[" * 100_000),
        frame(b'{"message":"Inspect","report":true,"space":' + b"[" * 100_000),
        frame(b'{"message":"Inspect","report":true,"space":' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
        frame(GOOD_BODY, n_json=len(GOOD_BODY) - 1),
        frame(GOOD_BODY, n_json=len(GOOD_BODY) + 1),
        frame(GOOD_BODY, n_json=2**32 - 1),
        frame(GOOD_BODY, offset=1),
        frame(GOOD_BODY, offset=64),
        frame(GOOD_BODY, offset=2**32 - 1),
        frame(GOOD_BODY, offset=64, tail=bytes(64 - 8 - len(GOOD_BODY) + 3)),
        frame(GOOD_BODY, offset=68, tail=bytes(100 - len(GOOD_BODY))),
    ],
    ids=lambda buffer: bytes(buffer[:60]).decode("ascii", "replace"),
)
def test_a_frame_with_one_thing_wrong_is_refused(buffer):
    with pytest.raises(ProtocolError, match="not one of our messages"):
        decode(buffer)


def test_a_message_cut_short_anywhere_is_refused():
    # Whole floats missing at its end cannot be seen here: whoever expects a vector knows its length.
    buffer = encode(EXAMPLE, np.ones(3, np.float32))
    for n in range(buffer.size):
        if n >= 512 and (n - 512) % 4 == 0:
            continue
        with pytest.raises(ProtocolError, match="not one of our messages"):
            decode(buffer[:n])
    buffer = encode(EXAMPLE)
    for n in range(buffer.size):
        with pytest.raises(ProtocolError, match="not one of our messages"):
            decode(buffer[:n])


@given(message=messages, data=st.data())
@settings(deadline=None, max_examples=examples(200))
def test_a_message_with_a_field_of_another_type_raises_a_protocol_error(message, data):
    values = json.loads(message.to_json())
    hints = {name: hint for name, hint in get_type_hints(type(message)).items() if hint is not Any}
    name = data.draw(st.sampled_from(sorted({"message", *hints})))
    values[name] = data.draw(plain)
    buffer = frame(json.dumps(values).encode())
    try:
        again = decode(buffer)[0]
    except ProtocolError:
        return
    assert decode(encode(again))[0] == again  # it was of the right type after all


@given(message=messages)
@settings(deadline=None, max_examples=examples(50))
def test_a_message_comes_back_from_its_json(message):
    assert from_json(message.to_json()) == message


@pytest.mark.parametrize("text", ["", "{}", "[1]", "\0", '{"message":"Fence"}', '{"message":"None"}', "\ud800"])
def test_another_text_is_no_message(text):
    with pytest.raises(ProtocolError, match="not one of our messages"):
        from_json(text)


def test_names_of_messages_are_unique_and_complete():
    sources = "".join(path.read_text() for path in Path(nnlo_opt.__file__).parent.rglob("*.py"))
    defined = re.findall(r"^class (\w+)\((?:msg\.)?(?:Assignment)?Message\):", sources, re.MULTILINE)
    assert len(defined) > 30
    assert sorted([*MESSAGE_TYPES, "AssignmentMessage"]) == sorted(defined)
    assert "Message" not in MESSAGE_TYPES
