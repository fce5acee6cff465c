"""Frozen values that travel or stay as JSON, read back with the type of every field checked.

The standard library writes them, as msgspec writes floats in another form, a NaN as `null`, and bytes as text. msgspec
reads them, straight into their classes.
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

#: largest integer; beyond it neighbouring integers are the same float, in JSON readers and in surrogates
MAX_INTEGER = 2**53
#: number of something, -1 for none of them; how many there are; how many there are if there is one at least
Number = Annotated[int, msgspec.Meta(ge=-1, le=MAX_INTEGER)]
Count = Annotated[int, msgspec.Meta(ge=0, le=MAX_INTEGER)]
Positive = Annotated[int, msgspec.Meta(ge=1, le=MAX_INTEGER)]
#: seconds of three centuries: of times before and after a start, and of durations, whose sums calendars know
MOST_SECONDS = 1e10
Seconds = Annotated[float, msgspec.Meta(ge=-MOST_SECONDS, le=MOST_SECONDS)]
Elapsed = Annotated[float, msgspec.Meta(ge=0.0, le=MOST_SECONDS)]
#: times of a clock, before the year 8307
MOST_UNIX_SECONDS = 2e11
UnixSeconds = Annotated[float, msgspec.Meta(ge=0.0, le=MOST_UNIX_SECONDS)]
T = TypeVar("T")
#: gives a field its default; here for all modules, as this one alone imports msgspec
field = msgspec.field
#: without the search for data that holds itself, which takes a tenth of the time: RecursionError finds it as well
_ENCODER = json.JSONEncoder(
    separators=(",", ":"), allow_nan=False, check_circular=False, default=msgspec.structs.asdict
)


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
class _RecordType(msgspec.StructMeta):
    """Makes every record keyword-only, which a subclass does not inherit from a `msgspec.Struct`."""

    def __new__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **settings: Any) -> Any:
        return super().__new__(cls, name, bases, namespace, frozen=True, **{"kw_only": True} | settings)


class Frozen(msgspec.Struct, metaclass=_RecordType):
    """Base of frozen values."""

    def replaced(self, **changes: Any) -> Self:
        """Return a copy with other values of some fields, as `dataclasses.replace` does."""
        return msgspec.structs.replace(self, **changes)


class Record(Frozen, tag=True, forbid_unknown_fields=True):
    """Base of the classes of one family; their JSON names the class under the `tag_field` of the family."""

    def to_json(self) -> str:
        """Return the record as JSON, its class first.

        Raises:
            ValueError: a number is not finite, or data holds itself.
            TypeError: a value is no plain data.
        """
        config = self.__struct_config__
        try:
            return _ENCODER.encode({config.tag_field: config.tag, **msgspec.structs.asdict(self)})
        except RecursionError as error:
            raise ValueError("data holds itself, or is nested too deeply") from error


class Reader(Generic[T]):
    """Reads the records of one family from JSON.

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
            ValueError: `text` is no JSON, or holds a number that is not finite.
            TypeError: `text` is JSON of something else: of another class, or with a field missing, unknown or mistyped.
        """
        return _read(self._one, text)

    def read_all(self, text: bytes) -> list[T]:
        """Return the records of a JSON array; one call for many takes half the time. Raises as `read`."""
        return _read(self._many, text)


def checked(values: Any, kind: type[T]) -> T:
    """Return plain data, as `json` reads it, as a `kind` with all its fields checked; TypeError if it is none."""
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
        # Names of files may hold half a surrogate pair, which `json` writes and reads, and msgspec does not.
        return checked(parse_json(text, **ALL_FINITE), decoder.type)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


@contextmanager
def without_collection() -> Iterator[None]:
    """Disable the garbage collector: a long journal, or an import, makes many objects that are all kept."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
