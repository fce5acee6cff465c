"""Encodes messages as JSON, followed by at most one float32 vector. Nothing is pickled.

    | uint32 n_json | uint32 payload_offset (0: none) | n_json bytes of JSON | padding | float32 payload |

The payload starts at a multiple of 64 bytes, so its view in an aligned buffer is aligned, too.
"""

import struct

import numpy as np

from nnlo_opt.core.base.errors import ProtocolError
from nnlo_opt.core.base.records import Reader
from nnlo_opt.core.base.vectors import ALIGNMENT_BYTES, aligned, aligned_bytes
from nnlo_opt.core.comm import objective_messages, run_messages  # noqa: F401  (registers their classes)
from nnlo_opt.core.comm.messages import AssignmentMessage, Message

_HEAD = struct.Struct("<II")
#: bytes reserved for head and JSON before a payload; longer JSON moves the payload back
_USUAL_OFFSET = 512

_READER = Reader[Message]({*Message.__subclasses__(), *AssignmentMessage.__subclasses__()} - {AssignmentMessage})


def encode(message: Message, payload: np.ndarray | None = None, head: bytes = b"") -> np.ndarray:
    """Encode a message into a new buffer, uint8, shape (n_bytes,).

    >>> from nnlo_opt.core.comm.messages import Fence
    >>> decode(encode(Fence(assignment=7), np.ones(2, np.float32)))[1]
    array([1., 1.], dtype=float32)

    Args:
        message: the message.
        payload: float32, shape (n,); it is copied.
        head: bytes before a message without payload. Pass the buffer after them to `decode`.

    Raises:
        ProtocolError: the message contains a non-finite number, or data that is not JSON.
    """
    body = to_json(message).encode()
    if payload is None:
        return np.frombuffer(b"".join((head, _HEAD.pack(len(body), 0), body)), np.uint8)
    if payload.dtype != np.float32 or payload.ndim != 1:
        raise ProtocolError(f"A payload must be a float32 vector. Received: {payload.dtype}, shape {payload.shape}.")
    end_of_json = _HEAD.size + len(body)
    offset = max(_USUAL_OFFSET, aligned(end_of_json))
    buffer = aligned_bytes(offset + payload.nbytes)
    buffer[offset:].view(np.float32)[:] = payload
    buffer[:end_of_json] = np.frombuffer(_HEAD.pack(len(body), offset) + body, dtype=np.uint8)
    return buffer


def decode(buffer: np.ndarray) -> tuple[Message, np.ndarray | None]:
    """Decode a buffer, uint8, shape (n_bytes,). The payload is a view of the buffer: copy it before reusing the buffer.

    >>> from nnlo_opt.core.comm.messages import Fence
    >>> decode(encode(Fence(assignment=7)))[0].assignment
    7

    Raises:
        ProtocolError: the bytes are not a message, or a field is missing, unknown or of the wrong type.
    """
    try:
        n_json, offset = _HEAD.unpack_from(buffer.data)
        end_of_json = _HEAD.size + n_json
        if offset:
            fits = end_of_json <= offset <= buffer.size and offset % ALIGNMENT_BYTES == 0
        else:
            fits = end_of_json == buffer.size
        if not fits:
            raise ValueError(f"{n_json} bytes of JSON and a payload at {offset} do not fit")
        message = _READER.read(buffer[_HEAD.size : end_of_json].tobytes())
        payload = buffer[offset:].view(np.float32) if offset else None
    except (struct.error, ValueError, TypeError) as error:
        raise ProtocolError(f"Received {buffer.size} bytes that are not one of our messages: {error!r}") from error
    return message, payload


def to_json(message: Message) -> str:
    """Return a message without payload as text. ProtocolError: its data are not finite, or not plain."""
    try:
        return message.to_json()
    except (ValueError, TypeError) as error:
        name = type(message).__name__
        raise ProtocolError(f"{name} has data that cannot be sent (not finite, or not plain): {message}") from error


def from_json(text: str) -> Message:
    """Return the message that `to_json` wrote. ProtocolError: the text is no message.

    >>> from nnlo_opt.core.comm.messages import Fence
    >>> from_json(Fence(assignment=7).to_json())
    Fence(assignment=7)
    """
    try:
        return _READER.read(text.encode())
    except (ValueError, TypeError) as error:
        raise ProtocolError(f"Received {len(text)} characters that are not one of our messages: {error!r}") from error
