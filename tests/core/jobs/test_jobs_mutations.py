"""Each rule of the protocol is needed: without it the model finds what breaks."""

import itertools
import re

import pytest

from nnlo_opt.core.jobs import job as job_module
from nnlo_opt.core.jobs import lead as lead_module
from nnlo_opt.core.jobs import succession
from nnlo_opt.core.jobs.files import begun_name, journal_name, orders_name, term_name
from nnlo_opt.core.jobs.job import Job
from nnlo_opt.core.jobs.lead import Lead
from nnlo_opt.core.jobs.lines import Beat, Expelled, Follows, Joined, LogReader
from nnlo_opt.core.jobs.roster import Roster
from nnlo_opt.core.jobs.succession import BEGUN, Candidate
from nnlo_opt.core.jobs.terms import Terms
from nnlo_opt.core.trials import events as ev
from tests.core.jobs.test_jobs_model import PLANS
from tests.helpers.many_jobs import World, any_plan, each_strike
from tests.helpers.shared_disk import Violation

#: rule -> what takes it away, what the model finds then, and the seed of a plan in which it does
RULES = {}


def rule(found, seed=0):
    """Register what takes away the rule that is its name; the model finds this then, in the plan of a seed."""

    def register(wrong):
        RULES[wrong.__name__] = wrong, found, seed

    return register


@rule("the search goes on for ever", seed=9)
def a_coordinator_looks_for_later_terms(patch):
    def look(self):
        before = self._terms.greatest
        self._terms.look()
        if self._terms.greatest > before:
            self._meet_owner()

    patch.setattr(Job, "_look", look)


@rule("two writers of term", seed=1)
def a_name_that_cannot_be_seen_may_be_taken(patch):
    def take(self, job):
        self.greatest += 1
        if self._files.read(term_name(self.greatest)) is not None:
            return False
        self._files.append(term_name(self.greatest), b"%d\n" % job)
        return True

    patch.setattr(Terms, "take", take)


@rule("two writers of journal")
def a_successor_writes_to_its_own_file(patch):
    def begin(self):
        has_begun = original(self)
        if has_begun and self._copy.term:
            self._journal = self._files.journal(journal_name(self._copy.term))
        return has_begun

    original = Lead.begin
    patch.setattr(Lead, "begin", begin)


@rule("lines of the journal before term . are lost", seed=50)
def a_successor_waits_for_the_last_lines(patch):
    patch.setattr(Candidate, "_has_last_lines", lambda self, copy, waited_s: True)


@rule("lines of the journal before term . are lost", seed=576)
def a_successor_closes_terms_that_have_not_begun(patch):
    def look(self):
        while self._before and self._files.read(begun_name(self._before)) != BEGUN:
            self._before -= 1
        return True

    patch.setattr(Candidate, "_close_others", look)


@rule("lines of the journal before term . are lost", seed=3)
def a_successor_copies_the_journal_of_the_last_term(patch):
    original = succession._journal
    patch.setattr(succession, "_journal", lambda files, term: original(files, 0))


@rule("an order of term . was obeyed in term")
def orders_carry_the_term(patch):
    class OfAnyTerm(LogReader):
        def __init__(self, files, name, kinds):
            super().__init__(files, name, kinds)
            stem, job, term = name.removesuffix(".log").split("-")[0], *name.removesuffix(".log").split("-")[1:]
            names = [orders_name(int(job), t) for t in range(1, int(term))] if stem == "orders" else []
            self._others = [LogReader(files, name, kinds) for name in names]
            for other in self._others:
                other.new()

        def new(self):
            return [line for other in self._others for line in other.new()] + super().new()

    patch.setattr(job_module, "LogReader", lambda f, n, k: (OfAnyTerm if "orders" in n else LogReader)(f, n, k))


@rule("another one", seed=151)
def reports_count_by_job_and_term(patch):
    patch.setattr(Roster, "holds", lambda self, job, term, assignment: assignment in self.held)


@rule("the result of assignment . is lost")
def reports_count_until_they_are_in_the_journal(patch):
    class FromNowOn(LogReader):
        def new(self):
            is_first, lines = not self.n_lines, super().new()
            return [line for line in lines if isinstance(line, Joined | Follows)] if is_first else lines

    patch.setattr(lead_module, "LogReader", FromNowOn)


@rule("the search goes on for ever", seed=14)
def a_job_is_alive_by_its_log_whatever_the_clocks_say(patch):
    class Dated(LogReader):
        unix_s = None

        def new(self):
            lines = super().new()
            self.unix_s = next((line.unix_s for line in reversed(lines) if isinstance(line, Beat)), self.unix_s)
            return lines

    def read(self, job):
        log = self._logs[job]
        reports = original(self, job)
        log.watch.silent_s = 0.0 if log.reader.unix_s is None else self._clock.unix_s() - log.reader.unix_s
        return reports

    original = Lead._read
    patch.setattr(lead_module, "LogReader", Dated)
    patch.setattr(Lead, "_read", read)


@rule("the result of assignment . is lost")
def a_fold_is_assigned_again_once_its_job_has_let_go(patch):
    def begin(self):
        has_begun = original(self)
        if has_begun:
            self.record(*(ev.AssignmentLost(time_s=self.now_s, assignment=n) for n in self.roster.held))
        return has_begun

    original = Lead.begin
    patch.setattr(Lead, "begin", begin)


@rule("a job got an order that it may not obey", seed=5)
def a_job_follows_a_term_only_when_it_has_let_go(patch):
    class Idle:
        def __init__(self, workplace):
            self.let_go, self.admit = workplace.let_go, workplace.admit
            self.take, self.drop, self.reports = workplace.take, workplace.drop, workplace.reports
            self.is_busy = False

    def start(self, files, clock, workplace, *arguments, **keywords):
        original(self, files, clock, Idle(workplace), *arguments, **keywords)

    original = Job.__init__
    patch.setattr(Job, "__init__", start)


@rule("the result of assignment . is lost")
def reports_are_recorded_before_anything_is_lost(patch):
    def read(self, job):
        log, now_s = self._logs[job], self._clock.monotonic_s()
        log.waiting += log.reader.new()
        log.watch.look(log.reader.n_lines, now_s)
        reports = []
        while log.waiting:
            self._take(job, log, log.waiting.popleft(), reports)
        if log.watch.is_silent and job in self.roster.here:
            self._expel(job, lead_module.VANISHED, Expelled())
        return reports

    patch.setattr(Lead, "_read", read)


@rule("the search goes on for ever", seed=27)
def an_incomplete_line_is_not_there_yet(patch):
    def new(self):
        lines = []
        data = self._files.read(self._name, self._n_bytes) or b""
        for text in data.splitlines():
            with_error = False
            try:
                lines.append(self._kinds.read(b"{" + text[text.index(b'"crc"') + 17 :]))
            except (ValueError, TypeError):
                with_error = True
            self.n_lines += not with_error
        self._n_bytes += len(data)
        return lines

    patch.setattr(LogReader, "new", new)


@rule("the search is not complete", seed=1559)
def the_end_of_the_search_is_sealed(patch):
    def end(self):
        self.is_sealed = True

    def leave_if_complete(self, copy):
        if copy is not None and Roster(copy.content.events).is_complete:
            self._files.publish(journal_name(copy.term))
            self.leave()

    patch.setattr(Lead, "end", end)
    patch.setattr(Job, "_leave_if_sealed", leave_if_complete)


def further_plans():
    """Yield plans, with one strike and with any in turn."""
    struck = itertools.chain.from_iterable(each_strike(PLANS[name], every=8) for name in PLANS)
    for one, seed in zip(struck, itertools.count()):
        yield from (one, any_plan(seed))
    yield from map(any_plan, range(1000, 2000))


def breaks(plan, found):
    """Return True if the model finds this in a run of the plan; a mutant may break in other ways, too."""
    try:
        World(plan).run()
    except Exception as error:
        return isinstance(error, Violation) and re.search(found, str(error)) is not None
    return False


@pytest.mark.parametrize("name", RULES)
def test_without_a_rule_the_model_finds_what_breaks(name):
    wrong, found, seed = RULES[name]
    # A change of the protocol may make the first plan harmless; others are made with the rule.
    for plans in (lambda: [any_plan(seed)], further_plans):
        chosen = list(plans())
        with pytest.MonkeyPatch.context() as patch:
            wrong(patch)
            if any(breaks(plan, found) for plan in chosen):
                return
    pytest.fail("nothing was found")
