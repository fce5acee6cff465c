"""A short form of benchmarks/resilience/fuzz.py, and the files by which it found defects."""

import sys
from functools import cache
from pathlib import Path

import pytest

from tests.helpers.effort import some_of

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks" / "resilience"))

from fuzz_judge import FINE, end_child, fuzz, judged, limited
from fuzz_readers import NAMES, Readers

#: readers that have a process for each file
ALONE = {"space", "hdf5", "hdf5_weights", "keras"}
#: damaged files
N_INPUTS, N_OF = 300, {"repair": 100, **dict.fromkeys(ALONE, 60)}
#: READER/SEED/WHAT
FOUND = sorted((Path(__file__).parent / "found").glob("*/*/*"))


@pytest.fixture(scope="module")
def reader_of(tmp_path_factory):
    readers = Readers(tmp_path_factory.mktemp("fuzz"))
    with readers.quiet():
        yield cache(lambda name: getattr(readers, name)())
        end_child()


def marks_of(name: str) -> list[pytest.MarkDecorator]:
    return [pytest.mark.proof] * (name in ALONE) + [pytest.mark.keras] * (name == "keras")


@pytest.mark.parametrize("part", some_of([4, 1]))
@pytest.mark.parametrize("name", [pytest.param(name, marks=marks_of(name)) for name in NAMES])
def test_damaged_files_are_read_or_refused_in_words(reader_of, name, part):
    report = fuzz(name, reader_of(name), N_OF.get(name, N_INPUTS) // part, seed=1)
    assert not report.n_failed, {kind: case[1:] for kind, case in report.cases.items()}


@pytest.mark.parametrize("path", FOUND, ids=lambda path: "-".join(path.parts[-3:]))
def test_what_was_found_once_is_read_or_refused_in_words(reader_of, path):
    *_, name, seed, _ = path.parts
    with limited():
        verdict = judged(reader_of(name), seed, path.read_bytes(), True)
    assert verdict.kind in FINE, verdict
