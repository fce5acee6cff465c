"""Agreement of ranks on a collective call, and numbers of 16 bits."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnlo_opt.core.comm import calls
from nnlo_opt.core.comm.calls import CHUNK, HALVES, KINDS, Agreement, Call, chunks, doubled, halved, head, idle_head

DTYPES, WORDS = st.sampled_from(["float32", "int64"]), st.sampled_from(["2 x 3 numbers", "3 x 2 numbers"])
CALLS = st.builds(Call, st.sampled_from(KINDS), DTYPES, st.integers(0, 10), st.just(0), WORDS)


@given(st.lists(st.one_of(st.none(), CALLS), min_size=1, max_size=5))
def test_ranks_agree_if_all_that_have_not_joined_make_the_same_call(of_ranks):
    heads = [idle_head() if call is None else head(call, 7) for call in of_ranks]
    agreement = Agreement.of(np.sum(heads, axis=0))
    made = [call for call in of_ranks if call is not None]
    assert agreement.n_active == len(made)
    assert agreement.n_samples == 7 * len(made)
    assert agreement.call == (made[0]._replace(words="") if len(set(made)) == 1 else None)


def test_the_marks_of_thousands_of_ranks_fit_into_the_sums():
    call = Call("sum", "float32", 10**11, 300)
    agreement = Agreement.of(32_000 * head(call, 10**9))
    assert agreement.call == call
    assert agreement.n_samples == 32_000 * 10**9


def test_a_refusal_names_the_ranks():
    sums = head(Call("sum", "float32", 3), 1) + idle_head(leaving=1)
    assert "rank 1 at the end of its program" in calls.refusal(Agreement.of(sums), [])
    sums += idle_head(leaving=2)
    assert "2 ranks at the end" in calls.refusal(Agreement.of(sums), [])
    text = calls.refusal(Agreement.of(np.zeros(9, np.int64)), ["", "a barrier", "a reduction"])
    assert "a barrier on rank 1, a reduction on rank 2" in text


def test_a_refusal_says_that_learning_rates_alone_differ():
    def words(rate, n=3):
        return (
            f"a reduction (average, {calls.Step([(n,)], [rate]).shown}) of {n} numbers (float32) in arrays of [({n},)]"
        )

    nobody = Agreement.of(np.zeros(9, np.int64))
    text = calls.refusal(nobody, [words(0.1), words(0.1), words(0.01)])
    assert text.startswith(
        "All ranks must make the same steps with the same learning rate. Received: a reduction (average"
    )
    assert "learning rate 0.1) of 3 numbers" in text
    assert "learning rate 0.01) of 3 numbers (float32) in arrays of [(3,)] on rank 2. Let what changes" in text
    assert "Build the same model" in calls.refusal(nobody, [words(0.1), words(0.01, 4)])
    assert words(np.float32(0.1)) == words(0.1)


@pytest.mark.parametrize(("shape", "words"), [((), "one number"), ((1,), "1 number"), ((2, 3), "2 x 3 numbers")])
def test_words_tell_shapes_apart(shape, words):
    assert calls.numbers_of(shape, np.dtype("int8")) == f"{words} (int8)"
    assert calls.numbers_of(shape, "int8", "loss") == f'{words} (int8) named "loss"'


@pytest.mark.parametrize("n", [0, 1, CHUNK, CHUNK + 1, 3 * CHUNK])
def test_chunks_are_a_vector_in_order(n):
    ends = [0, *(part.stop for part in chunks(n))]
    assert [part.start for part in chunks(n)] == ends[:-1]
    assert ends[-1] == n


@pytest.mark.parametrize("kind", HALVES)
@given(numbers=st.lists(st.floats(-6e4, 6e4, width=32), min_size=1))
def test_numbers_of_16_bits_are_the_nearest(kind, numbers):
    exact = np.array(numbers, np.float32)
    error = np.abs(doubled(halved(exact, kind), kind) - exact)
    assert (error <= np.abs(exact) * 2.0 ** (-11 if kind == "float16" else -8) + 2.0**-24).all()


@pytest.mark.parametrize("kind", HALVES)
def test_what_is_not_finite_stays_so(kind):
    numbers = np.array([np.nan, np.inf, -np.inf, -0.0, np.finfo(np.float32).max], np.float32)
    np.testing.assert_array_equal(doubled(halved(numbers, kind), kind), [np.nan, np.inf, -np.inf, -0.0, np.inf])
