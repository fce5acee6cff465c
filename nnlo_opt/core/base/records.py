"""Frozen values that are stored or sent as JSON, and read back with every field's type checked.

The standard library writes them, because msgspec writes floats in another form, NaN as `null`, and bytes as text.
msgspec reads them directly into their classes.
"""

import gc
import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import reduce
from operator import or_
from typing import Annotated, Any, Generic, Self, TypeVar, dataclass_transform

import msgspec

from nnlo_opt.core.base.files import ALL_FINITE, parse_json

#: largest integer; beyond it neighbouring integers round to the same float in JSON readers and surrogates
MAX_INTEGER = 2**53
#: Number: an index, or -1 for none. The others: counts, from 0 and from 1
Number = Annotated[int, msgspec.Meta(ge=-1, le=MAX_INTEGER)]
Count = Annotated[int, msgspec.Meta(ge=0, le=MAX_INTEGER)]
Positive = Annotated[int, msgspec.Meta(ge=1, le=MAX_INTEGER)]
#: three centuries in seconds: limit of durations and of times relative to a start, so that sums are valid dates
MOST_SECONDS = 1e10
Seconds = Annotated[float, msgspec.Meta(ge=-MOST_SECONDS, le=MOST_SECONDS)]
Elapsed = Annotated[float, msgspec.Meta(ge=0.0, le=MOST_SECONDS)]
#: limit of clock times: the year 8307
MOST_UNIX_SECONDS = 2e11
UnixSeconds = Annotated[float, msgspec.Meta(ge=0.0, le=MOST_UNIX_SECONDS)]
T = TypeVar("T")
#: default of a field; re-exported because only this module imports msgspec
field = msgspec.field
#: without the check for circular data, which takes a tenth of the time: RecursionError detects it as well
_ENCODER = json.JSONEncoder(
    separators=(",", ":"), allow_nan=False, check_circular=False, default=msgspec.structs.asdict
)


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
class _RecordType(msgspec.StructMeta):
    """Makes all records keyword-only, which subclasses of a `msgspec.Struct` do not inherit."""

    def __new__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **settings: Any) -> Any:
        return super().__new__(cls, name, bases, namespace, frozen=True, **{"kw_only": True} | settings)


class Frozen(msgspec.Struct, metaclass=_RecordType):
    """Base class of frozen values."""

    def replaced(self, **changes: Any) -> Self:
        """Return a copy with some fields changed, like `dataclasses.replace`."""
        return msgspec.structs.replace(self, **changes)


class Record(Frozen, tag=True, forbid_unknown_fields=True):
    """Base class of a family of records; the JSON has the class name under the family's `tag_field`."""

    def to_json(self) -> str:
        """Return the record as JSON, class name first.

        Raises:
            ValueError: a number is not finite, or data is circular.
            TypeError: a value is not plain data.
        """
        config = self.__struct_config__
        try:
            return _ENCODER.encode({config.tag_field: config.tag, **msgspec.structs.asdict(self)})
        except RecursionError as error:
            raise ValueError("the data contains itself, or is nested too deeply") from error


class Reader(Generic[T]):
    """Reads records of one family from JSON.

    Args:
        classes: all classes of the family.
    """

    def __init__(self, classes: Iterable[type[T]]) -> None:
        one: Any = reduce(or_, classes)
        self._one: msgspec.json.Decoder[T] = msgspec.json.Decoder(one)
        self._many: msgspec.json.Decoder[list[T]] = msgspec.json.Decoder(list[one])

    def read(self, text: bytes) -> T:
        """Return the record of `text`.

        Raises:
            ValueError: `text` is not JSON, or contains a non-finite number.
            TypeError: `text` is another kind of JSON: another class, or a field that is missing, unknown or of the
                wrong type.
        """
        return _read(self._one, text)

    def read_all(self, text: bytes) -> list[T]:
        """Return the records of a JSON array, in half the time of single calls. Raises like `read`."""
        return _read(self._many, text)


def checked(values: Any, kind: type[T]) -> T:
    """Convert plain data, as `json` returns it, to a `kind`, checking all fields; TypeError if it does not fit."""
    try:
        return msgspec.convert(values, kind, str_keys=True)
    except msgspec.ValidationError as error:
        raise TypeError(str(error)) from error


def _read(decoder: "msgspec.json.Decoder[T]", text: bytes) -> T:
    try:
        return decoder.decode(text)
    except msgspec.ValidationError as error:
        raise TypeError(str(error)) from error
    except msgspec.DecodeError:
        # File names may contain lone surrogates, which `json` supports and msgspec does not.
        kind: Any = decoder.type  # a `type`, or a `TypeForm` since msgspec 0.23
        return checked(parse_json(text, **ALL_FINITE), kind)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


@contextmanager
def without_collection() -> Iterator[None]:
    """Disable the garbage collector: a long journal or an import creates many objects that all stay alive."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
