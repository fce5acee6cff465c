"""The protocol of jobs, checked: what `many_jobs` looks for after every disturbance.

No file has two writers, no line of a journal is lost, no result is lost or counted twice, no fold is on two teams that
both may report, and the search ends as long as one job lives.
"""

from dataclasses import replace

import pytest

from tests.helpers import effort
from tests.helpers.many_jobs import Fate, Plan, World, any_plan, each_strike

THREE = Plan((Fate(), Fate(starts_s=1), Fate(starts_s=4)))
#: what happens besides one strike at any operation of any job: delays, the death of the first coordinator, one that was
#: stopped and wakes up while its successor is about to begin, one that leaves, a late job
PLANS = {
    "twice": replace(THREE, fates=(Fate(strikes={40: 9}), Fate(starts_s=1, strikes={60: 13}), Fate(starts_s=4))),
    "asleep at the end": Plan((Fate(strikes={82: 11}), Fate(starts_s=1))),
    "at once": replace(THREE, late_s=0.0, names_late_s=0.0),
    "late": THREE,
    "dead": replace(THREE, fates=(Fate(strikes={40: "kill"}), *THREE.fates[1:])),
    "asleep": replace(THREE, fates=(Fate(strikes={40: 12}), *THREE.fates[1:])),
    "late to begin": replace(
        THREE, fates=(Fate(strikes={40: "kill"}), Fate(starts_s=1, strikes={73: 13}), Fate(starts_s=4))
    ),
    "leaving": replace(THREE, fates=(Fate(leaves_s=5), *THREE.fates[1:])),
    "after the end": replace(THREE, fates=(Fate(), Fate(starts_s=14))),
}


def run_all(plans):
    terms = set()
    for plan in plans:
        try:
            terms.add(World(plan).run().truth()[0])
        except BaseException as error:
            error.add_note(repr(plan))
            raise
    return terms


@pytest.mark.parametrize("name", PLANS)
def test_a_strike_at_any_operation_breaks_nothing(name):
    run_all(each_strike(PLANS[name], every=32))


@pytest.mark.proof
@pytest.mark.parametrize("name", PLANS)
def test_each_strike_at_each_operation_breaks_nothing(name):
    run_all(each_strike(replace(PLANS[name], seed=1)))


@pytest.mark.hypothesis
def test_jobs_struck_at_random_finish_the_search():
    assert len(run_all(map(any_plan, range(effort.examples(400))))) > 2, "hardly any succession"


@pytest.mark.slow
def test_many_jobs_struck_at_random_finish_the_search():
    run_all(map(any_plan, range(1000, 60_000)))


@pytest.mark.parametrize(("seed", "every"), effort.some_of([(0, 48), (0, 24), (12, 24)]))
@pytest.mark.parametrize("name", PLANS)
def test_the_coordinator_of_a_search_loses_nothing_at_a_strike(name, seed, every):
    run_all(each_strike(replace(PLANS[name], is_whole=True, seed=seed), every=every))


@pytest.mark.hypothesis
def test_the_coordinator_of_a_search_loses_nothing_whatever_strikes():
    plans = (replace(any_plan(seed), is_whole=True) for seed in range(effort.examples(200)))
    assert len(run_all(plans)) > 2, "hardly any succession"


@pytest.mark.slow
def test_the_coordinator_of_a_search_loses_nothing_in_many_runs():
    run_all(replace(any_plan(seed), is_whole=True) for seed in range(1000, 20_000))
