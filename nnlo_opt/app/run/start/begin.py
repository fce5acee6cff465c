"""First part of a start: the request is checked, and the run opened on all ranks."""

import os
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from nnlo_opt.app.reporting.words import counted
from nnlo_opt.app.run.options.checks import check_teams, least_workers
from nnlo_opt.app.run.options.space_checks import check_training
from nnlo_opt.app.run.start.console import WaitForSpace
from nnlo_opt.app.run.start.coordinate import RunningSearch
from nnlo_opt.app.run.start.driver import Driver
from nnlo_opt.app.run.start.identity import (
    check_same,
    identity_of,
    refuse_run_of_script,
    remark_on_command,
    remark_on_schedule,
    remark_on_workers,
    settings_of,
)
from nnlo_opt.app.run.start.inquiry import Inquiry
from nnlo_opt.app.run.start.script_folders import folders_of
from nnlo_opt.app.run.workload.findings import Findings
from nnlo_opt.core.base.clock import check_start
from nnlo_opt.core.base.errors import ConfigurationError
from nnlo_opt.core.base.spelling import either, spelled
from nnlo_opt.core.comm.run_messages import OpenRun
from nnlo_opt.core.coordinator.coordinator import Search
from nnlo_opt.core.coordinator.instructions import SearchPlan
from nnlo_opt.core.trials.events import RunStarted
from nnlo_opt.core.trials.identity import RunIdentity, ScriptFolders
from nnlo_opt.core.trials.ledger import Ledger
from nnlo_opt.core.trials.run_directory import RunDirectory, choose_name, is_shared, open_run, refuse_existing
from nnlo_opt.engine.data.lists import read_list
from nnlo_opt.engine.runtime.process import code_of_user
from nnlo_opt.engine.runtime.timeline import clear_parts


class JobPlace(NamedTuple):
    """Place of a job among all that share the run; the fields are those of `OpenRun`."""

    first_rank: int = 0
    first_team: int = 0
    job: str = ""


ALONE = JobPlace()


class Beginning:
    """Beginning of a start.

    Args:
        driver: of the start.
        last_words: returns what is written to the terminal if a signal ends the process.
    """

    def __init__(self, driver: Driver, last_words: Callable[[], str]) -> None:
        self._driver, self._last_words = driver, last_words
        self._topology, self._say = driver.topology, driver.say
        #: of the run; None before it is open
        self.directory: RunDirectory | None = None

    def check_early(self) -> None:
        """Refuse wrong options before any rank imports a heavy package."""
        options = self._driver.options
        options.training.rule.check_groups(options.n_masters, options.n_processes)
        check_teams(self._topology, options.n_masters, options.n_processes)
        if options.log_file is not None:
            self._driver.console.keep(options.log_file)
        check_training(options.training)
        for path in (options.data.train_data, options.data.val_data, options.data.test_data):
            if path is not None:
                read_list(path)
        if options.model.endswith((".py", ".json")) and not os.path.isfile(options.model):
            raise ConfigurationError(
                f"`{either('--model', 'target')}` must name a file that exists. Received: {options.model!r}; check "
                "the path."
            )
        for tool in options.mirror:
            self._driver.context.mirrors.require(tool)
        refuse_existing(options.run)
        refuse_run_of_script(options.run)
        self._driver.check_early()

    def begin(self) -> RunningSearch:
        """Check the request and open the run; return it with its coordinator at work."""
        driver = self._driver
        findings = Inquiry(driver).findings()
        name, remark = choose_name(driver.options.run, findings.model, driver.program)
        if remark:
            self._say(remark)
        if is_shared(replace(driver.options.run, name=name)) and not driver.options.run.overwrite:
            raise ConfigurationError(
                f"A run that jobs share is resumed by `--join` on the command line. Received: `{name}`, which jobs "
                "share; give `--join`, or choose another name."
            )
        directory = open_run(driver.options.run, name)
        try:
            asked = self.prepare(directory, findings)
            if driver.options.run.overwrite:
                directory.begin_anew()
            self.open_on_ranks(directory, findings, asked.scripts)
            directory.journal.wait_for_room(WaitForSpace(directory.shown, self._say))
            directory.record(self.started(directory, findings, asked), self._say)
            return RunningSearch(driver, directory, findings, asked.search, asked.plan)
        except BaseException:
            directory.abandon()
            raise

    def prepare(self, directory: RunDirectory, findings: Findings) -> "Asked":
        """Check the request against the ledger of `directory`, say what is about to happen, and start the search."""
        driver, ledger = self._driver, directory.ledger
        identity = self.identity(findings, ledger)
        self.directory = directory
        self._check_resumed(directory, identity, findings)
        if self._topology.remark:
            self._say(self._topology.remark)
        driver.host.greet(lambda: driver.greet(directory, findings), findings.unused)
        scripts = folders_of(driver.options, directory, self._say)
        plan = driver.plan_for(directory)
        with code_of_user():
            search = driver.start_search(findings, ledger.identity if ledger.sessions else identity, ledger)
        return Asked(identity, scripts, plan, search)

    def identity(self, findings: Findings, ledger: Ledger) -> RunIdentity:
        """Complete the options by the run so far; return the identity of the run that they ask for."""
        driver = self._driver
        driver.complete_options(findings, ledger)
        training = driver.options.training.with_steps(findings.steps)
        driver.options = replace(driver.options, training=training)
        return identity_of(driver.options, findings)

    def _check_resumed(self, directory: RunDirectory, identity: RunIdentity, findings: Findings) -> None:
        """Raise ConfigurationError if the run in `directory` is another one than this start asks for."""
        options, request = self._driver.options, self._driver.options.run
        if directory.ledger.sessions:
            refuse_existing(replace(request, name=directory.path.name))
            if remark := check_same(directory.ledger.identity, identity, str(directory.shown), request):
                self._driver.console.remark(remark)
            if remark := remark_on_command(directory.ledger.settings, options):
                self._say(remark)
            if remark := remark_on_workers(directory.ledger, options, self._topology.world_size):
                self._say(remark)
            if remark := remark_on_schedule(directory.ledger, options, findings, self._topology.world_size):
                self._say(remark)
            if directory.n_cut:
                n_cut = counted(directory.n_cut, "byte")
                self._say(f"Cut {n_cut} off the end of the journal: a write that was not completed.")
        elif request.restore and request.name is not None:
            self._say(f"No journal in `{directory.shown}`: starting a new run.")

    def open_on_ranks(
        self, directory: RunDirectory, findings: Findings, scripts: ScriptFolders, *, place: JobPlace = ALONE
    ) -> None:
        """Have all ranks write to the run from now on; `place`: this job among those that share the run."""
        options, context = self._driver.options, self._driver.context
        if context.timeline.keeps and not options.joins:
            clear_parts(directory.path)
        space = self._driver.space_of(findings)
        opened = OpenRun(
            directory=str(directory.path.resolve()),
            is_objective=findings.is_objective,
            parameters=[] if space is None else [*space.names],
            with_tuples=[*options.with_tuples] if space is None else space.with_tuples,
            merging=[*findings.merging],
            n_fold=options.plan.n_fold,
            seed=options.seed,
            # So many workers must a master still have for its update rule when ranks have died.
            least_children=least_workers(options, findings),
            is_temporary=options.run.is_temporary,
            made={} if findings.data is None else findings.data.made,
            scripts=scripts,
            first_rank=place.first_rank,
            first_team=place.first_team,
            job=place.job,
        )
        self._driver.ranks.open_run(opened, self._topology)
        if options.monitor and findings.is_objective:
            self._say(f"`{spelled('monitor', True)}` has no effect: it measures workers, and an objective has none.")
        if options.keep_weights and not findings.pauses and options.command is None:
            self._say("`--keep-weights` has no effect: an objective without `checkpoint` keeps its weights by itself.")
        context.say_at_the_end(self._last_words)
        context.open(directory.path, self._topology, *place)

    def started(
        self, directory: RunDirectory, findings: Findings, asked: "Asked", time_s: float | None = None
    ) -> RunStarted:
        """Return the event of this start.

        `time_s`: seconds since the first start, if the caller knows them.
        """
        ledger, unix_s = directory.ledger, self._driver.clock.unix_s()
        since_s = unix_s - ledger.first_start_unix_s if ledger.sessions else 0.0
        check_start(unix_s, since_s)
        return RunStarted(
            time_s=since_s if time_s is None else time_s,
            unix_s=unix_s,
            n_ranks=self._topology.world_size,
            n_blocks=self._topology.n_blocks,
            identity=asked.identity.plain,
            settings=settings_of(self._driver.options, findings, asked.scripts, self._driver.program),
            adopted=[] if ledger.sessions else self._driver.adopted,
            cut_bytes=directory.n_cut,
        )


class Asked(NamedTuple):
    """What a start asks for, checked against the run."""

    identity: RunIdentity
    scripts: ScriptFolders
    plan: SearchPlan
    search: Search
