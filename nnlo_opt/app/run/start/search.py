"""OptimizationDriver: rank 0 coordinates a search, the other ranks train in blocks."""

import sys
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from nnlo_opt.app.reporting.table import pareto_table, trials_table
from nnlo_opt.app.reporting.terminal import line_width
from nnlo_opt.app.reporting.words import (
    best_expected_text,
    constraints_text,
    counted,
    figure_text,
    losses_text,
    outcome,
    point_text,
)
from nnlo_opt.app.run.afterwards.best_model import weights_text
from nnlo_opt.app.run.options.choice import chosen, resumed, with_choice, without_effect
from nnlo_opt.app.run.options.pruning import pruning_for
from nnlo_opt.app.run.options.values import Options, budget_text
from nnlo_opt.app.run.rank.context import ProcessContext
from nnlo_opt.app.run.start.driver import Driver, Ended
from nnlo_opt.app.run.start.earlier import observations_of_runs, read_earlier
from nnlo_opt.app.run.start.one_start import Start, run_command
from nnlo_opt.app.run.workload.findings import Findings
from nnlo_opt.core.base.errors import (
    EXIT_FAILURE,
    EXIT_OK,
    EXIT_PREEMPTED,
    EXIT_WRONG_REQUEST,
    ConfigurationError,
    NnloError,
)
from nnlo_opt.core.base.records import checked
from nnlo_opt.core.base.spelling import spelled
from nnlo_opt.core.comm.topology import Topology
from nnlo_opt.core.coordinator.coordinator import Coordinator, Search
from nnlo_opt.core.coordinator.instructions import SearchPlan
from nnlo_opt.core.jobs.liveness import DEFAULT_TIMING
from nnlo_opt.core.search.base import Suggestion
from nnlo_opt.core.search.grid import grid_size
from nnlo_opt.core.search.pruners import describe
from nnlo_opt.core.search.pruning import FREEZE_THAW, PruningPlan
from nnlo_opt.core.search.start_points import check_start_points
from nnlo_opt.core.space.constraint import Constraint
from nnlo_opt.core.space.space import Space
from nnlo_opt.core.trials.events import Observation
from nnlo_opt.core.trials.identity import RunIdentity
from nnlo_opt.core.trials.ledger import Ledger
from nnlo_opt.core.trials.objectives import FIGURE, Objective
from nnlo_opt.core.trials.run_directory import JOURNAL_NAME, RunDirectory, is_shared
from nnlo_opt.engine.search.custom import custom_name, custom_pruner
from nnlo_opt.engine.search.process import InlineSearch, SearchProcess, SearchService
from nnlo_opt.engine.search.registry import AUTO, can_expect_best, is_grid, options_of

if TYPE_CHECKING:
    from nnlo_opt.engine.comm.mpi.world import World

#: an objective that is impossible for models: their figure of merit is minimised
MAXIMAL = Objective(FIGURE, "max")


def run(world: "World", options: Options, context: ProcessContext) -> int:
    """Run the command on this rank; return the exit code. Collective: every rank of the world."""
    if options.run.restore and is_shared(options.run):
        remark = f"Jobs share `{options.run.root / str(options.run.name)}`: this start joins it, as by `--join`."
        options = replace(
            options,
            join_s=options.join_s or DEFAULT_TIMING.limit_s,
            remarks=(*options.remarks, *[remark] * (not options.joins)),
        )
    start_of: Callable[[Driver], Start] = Start
    if options.joins:
        from nnlo_opt.app.run.jobs.joining import JoiningStart as start_of
    return run_command(OptimizationDriver, plan_search(world.size, options), world, options, context, start_of)


def plan_search(n_ranks: int, options: Options) -> Topology:
    """Return the plan of a world of `n_ranks` for a search."""
    return Topology.plan(n_ranks, options.block_size, options.plan.n_fold, **options.of_teams)


class HeldSearch(InlineSearch):
    """Search in this process that delays each suggestion until a trial can begin, so that it knows all values.

    Args:
        constraint: function that the points must satisfy; None for none.
        may_begin: returns True if another trial can begin.
    """

    def __init__(self, constraint: Constraint | None, may_begin: Callable[[], bool]) -> None:
        super().__init__(constraint)
        self._may_begin = may_begin
        #: unanswered requests
        self._requests: deque[int] = deque()
        #: True if a trial could begin at the last `poll`; the search has recorded everything known then
        self._could_begin = False

    def request_suggestion(self, request: int) -> None:
        self._requests.append(request)

    def poll(self) -> Suggestion | None:
        before, self._could_begin = self._could_begin, bool(self._requests) and self._may_begin()
        if before and self._could_begin:
            super().request_suggestion(self._requests.popleft())
        return super().poll()


class OptimizationDriver(Driver):
    """Drives a search."""

    name = "OptimizationDriver"
    _search: SearchService | None = None
    #: the pruning plan, completed for the model; None before that, and without a pruner
    _pruning: PruningPlan | None = None

    def load_space(self) -> Space | None:
        if self.host.space is not None:
            return self.host.space
        # Start early, to import its libraries while the trainer ranks import theirs.
        say = partial(self.say, stream=sys.stderr)
        self._search = SearchProcess(timeout_s=self.options.hang_timeout_s, say=say)
        if self.options.search_space is None:
            return None
        return self._search.load_space(self.options.search_space, self.options.fix)

    def check_early(self) -> None:
        if not self.options.run.restore:  # a resumed search no longer needs the earlier runs
            for place in self.options.search.warm_start:
                read_earlier(place)

    def check(self, findings: Findings) -> None:
        comparison = self.options.comparison
        if not findings.is_objective and comparison.function is None and MAXIMAL in comparison.objectives:
            raise ConfigurationError(
                f"`{spelled('direction', 'max')}` is for objective modules, `{spelled('figure_of_merit')}` and "
                "metrics. Received: a model whose figure of merit is minimised; leave it out, or name a metric by "
                f"`{spelled('objective')}`, for example val_acc:max."
            )
        if self.options.search.warm_start and self.options.plan.objectives:
            raise ConfigurationError(
                f"`{spelled('warm_start')}` needs a search of one objective. Received: "
                f"{len(self.options.plan.objectives)} objectives. Drop `{spelled('warm_start')}`, or keep one "
                f"`{spelled('objective')}`."
            )
        check_start_points(findings.search_space, self.options.search.start_points)
        plan, is_open = self.options.plan.pruning, self.options.search.algorithm == AUTO
        if plan is not None and not (is_open and plan.name == FREEZE_THAW):
            self._pruning = pruning_for(plan, comparison, self.options.training.epochs, findings)
        if (custom := self.options.custom_pruner) is not None:
            self.pruner = custom_pruner(custom)
        if self.options.search.algorithm == "grid":
            n_points = grid_size(findings.search_space, self.options.search.grid_points)
            if not self.options.plan.num_iterations:
                whole = replace(self.options.plan, num_iterations=n_points)
                self.options = replace(self.options, plan=whole, run=replace(self.options.run, n_asked=n_points))

    def complete_options(self, findings: Findings, ledger: Ledger) -> None:
        """Choose the algorithm for `--hyper-opt auto`; a resumed run keeps its own."""
        if self.options.search.algorithm != AUTO:
            return
        choice = resumed(ledger.settings) if ledger.sessions else chosen(self.options, findings)
        if remark := without_effect(self.options, choice):
            self.console.remark(remark)
        self.options = with_choice(self.options, choice)
        if choice.algorithm == FREEZE_THAW and (plan := self.options.plan.pruning) is not None:
            self._pruning = pruning_for(plan, self.options.comparison, self.options.training.epochs, findings)

    def plan_for(self, directory: RunDirectory) -> SearchPlan:
        plan, ledger = self.options.plan, directory.ledger
        first_unix_s = ledger.first_start_unix_s if ledger.sessions else self.clock.unix_s()
        began_at_s = self.began_unix_s - first_unix_s
        # A job that shares its run leaves before the end of its own walltime, which does not end the search.
        walltime_s = None if self.options.joins else self.options.walltime_s
        budget = plan.budget.of_start(walltime_s, began_at_s)
        return replace(plan, pruning=self._pruning, budget=budget)

    def start_search(self, findings: Findings, identity: RunIdentity, ledger: Ledger) -> Search:
        options, space = self.options.search, findings.search_space
        if self._search is None:
            constraint = None if self.host.space is None else self.host.space.constraint
            self._search = HeldSearch(constraint, partial(self._may_begin, ledger))
        settings = options.to_json()
        if self.options.plan.objectives:
            settings["n_objectives"] = len(self.options.plan.objectives)
        if self.options.comparison.constraints:
            settings["outcome_constraints"] = list(map(str, self.options.comparison.constraints))
        if "n_initial_points" in options_of(options.algorithm) and identity.n_initial_points is not None:
            settings["n_initial_points"] = identity.n_initial_points
        if self._pruning is not None:
            settings["max_epochs"] = self._pruning.max_epochs
        # Not in a run of an older version, nor in one that began as a grid.
        settings["likely_first"] = identity.likely_first and not is_grid(options.algorithm)
        if ledger.sessions:
            self.adopted = ledger.adopted
            before = ledger.settings.hyper_opt
            if before not in ("", now := custom_name(options.algorithm)):  # any algorithm can continue any history
                self.console.remark(f"The search was {before} and is now {now}.")
        else:
            start = self.options.run.start  # the model module may have changed the working folder
            moved = Path.cwd() != start
            places = [start / place if moved and isinstance(place, Path) else place for place in options.warm_start]
            observations, lines = observations_of_runs(places, identity, space)
            self.adopted = [dict(observation) for observation in observations]
            for line in lines:
                self.say(line)
        remark = self._search.start(options.algorithm, space, self.options.seed, settings)
        if remark and not ledger.sessions:
            self.console.remark(remark)
        sign = -1.0 if self.options.plan.direction == "max" else 1.0
        adopted = [{**observation, "value": sign * observation["value"]} for observation in self.adopted]
        self._search.adopt(checked(adopted, list[Observation]))
        return self._search

    def remark(self, ended: Ended) -> None:
        plan, trials = self._pruning, ended.directory.ledger.trials
        if plan is not None and ended.findings.is_objective and trials and not any(trial.reports for trial in trials):
            self.console.remark(
                f"`{spelled('pruner')}` compares trials by what they report. Received: {plan.name}, and "
                f"{counted(len(trials), 'trial')} without a report. Call `report(epoch, value)` after each epoch, or "
                "leave it out."
            )

    def last_request(self, coordinator: Coordinator) -> None:
        """Record which trial is expected to be the best, after all have ended."""
        can_expect = can_expect_best(self.options.search.algorithm) and not self.options.plan.objectives
        if self._search is None or not can_expect or self.context.preemption.left_s is not None:
            return  # out of time: a later start asks
        try:
            coordinator.expect(self._search.best_expected())
        except NnloError as error:
            self.console.remark(f"The best expected trial is not known: {error}")

    def _may_begin(self, ledger: Ledger) -> bool:
        """Return True if another trial can begin in a script."""
        n_by_state = ledger.n_by_state()
        return n_by_state["pending"] + n_by_state["running"] < self.host.n_wanted(self.topology.n_blocks)

    def close(self) -> None:
        if self._search is not None:
            self._search.close()

    def greet(self, directory: RunDirectory, findings: Findings) -> None:
        options, topology = self.options, self.topology
        n_fold, epochs = options.plan.n_fold, counted(options.training.epochs, "epoch")
        sizes = {sum(len(t.world_ranks) for t in topology.teams_of(b + 1)) for b in range(topology.n_blocks)}
        ranks = " or ".join(str(size) for size in sorted(sizes, reverse=True))
        if findings.is_objective or "train.epochs" in findings.search_space.names:
            epochs = ""
        each = " of ".join(filter(None, [counted(n_fold, "fold") * (n_fold > 1), epochs]))
        because = f" (auto, because {options.hyper_opt_because})" * bool(options.hyper_opt_because)
        n_trials = counted(n, "trial") if (n := options.plan.num_iterations) else "any number of trials"
        self.say(
            f"Run `{directory.shown}`: {n_trials} of {findings.model}"
            f"{f' ({each})' * bool(each)} on {counted(topology.n_blocks, 'block')} of {ranks} "
            f"rank{'s' * (ranks != '1')}, {custom_name(options.search.algorithm)} search{because}, seed {options.seed}."
            f"{f' {findings.replaced}' * bool(findings.replaced)}"
        )
        if options.plan.objectives:
            self.say(f"Objectives: {', '.join(map(str, options.plan.objectives))}; searching for their Pareto set.")
        else:
            self.say(figure_text(findings.figure, options.plan.direction))
        if budget := budget_text(options.plan.budget, options.walltime_s):
            self.say(f"Ends early after {budget}.")
        self._say_data(findings)
        if self._pruning is not None:
            self.say(describe(self._pruning))
        ledger = directory.ledger
        if ledger.sessions:
            n_paused = ledger.n_by_state()["paused"]
            n_open = len(ledger.trials) - ledger.n_ended - n_paused
            state = f"{counted(ledger.n_ended, 'trial')} done, {n_open} in progress"
            self.say(f"Resuming `{directory.shown}`: {state}{f', {n_paused} paused' * bool(n_paused)}.")

    def conclude(self, ended: Ended) -> int:
        directory, ledger = ended.directory, ended.directory.ledger
        self.say("")
        self.say(trials_table(ledger, line_width(sys.stdout)))
        if ledger.objectives:
            self.say("")
            self.say(pareto_table(ledger, line_width(sys.stdout)))
        self.say("")
        kept = constraints_text(ledger)
        for line in filter(None, (losses_text(ledger), kept)):
            self.say(line)
        if ledger.complete:
            how = "stopped" if self.options.plan.allows(ledger.n_ended) else "complete"
            self.say(f"Search {how}: {ledger.completed_because} ({outcome(ledger)}).")
        else:
            self.say(
                f"Search interrupted: {ledger.preempted_because} ({outcome(ledger)}). Add "
                f"`{spelled('opt_restore', True)}` to resume."
            )
        self.say(f"Files: `{directory.shown}` ({', '.join((*ended.reports, JOURNAL_NAME))}).")
        best = ledger.best(self.options.plan.direction)
        if best is None and not ledger.complete:
            return EXIT_PREEMPTED
        if best is None and not ledger.trials and ledger.adopted:
            self.say(
                f"`{spelled('warm_start')}` must leave points to try. Received: runs that have tried every point of "
                "the search space. Drop it, or widen the space.",
                sys.stderr,
            )
            return EXIT_WRONG_REQUEST
        if best is None:
            reasons = [trial.reason for trial in ledger.trials if trial.reason]
            why = f"The first reason: {reasons[0]}" if reasons else kept or "None has begun."
            self.say(f"No trial succeeded. {why}", sys.stderr)
            return EXIT_FAILURE
        name = ended.findings.figure if ledger.objectives else "figure of merit"
        which = "Best in the first objective" if ledger.objectives else "Best"
        at = f", at {point_text(best.point)}" * bool(best.point)
        self.say(f"{which}: trial {best.number}, {name} {best.figure_of_merit:.6g}{at}")
        if expected := best_expected_text(ledger):
            self.say(expected)
        if ended.model_path is not None:
            weights = weights_text(directory.path, best, self.options.plan.direction)
            self.say(f"Its model: `{ended.model_path}`, {weights}.")
        return EXIT_OK if ledger.complete else EXIT_PREEMPTED
