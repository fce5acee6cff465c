"""The readers of fuzz.py, with sound files of short searches and a short training."""

import json
import logging
import sys
import tempfile
import warnings
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from functools import cached_property
from io import BytesIO, StringIO
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from fuzz_edits import ARCHIVE, JOURNAL, JSON, RESEALED, SEALED, TRACE, Form, Seed
from fuzz_judge import Reader

import nnlo_opt
from nnlo_opt.app.commands.driver_parsers import driver_parser, normalise
from nnlo_opt.app.commands.process import HelpRequested
from nnlo_opt.app.reporting import results, table
from nnlo_opt.app.run.afterwards.best_model import history_of
from nnlo_opt.app.run.options import making as run_options
from nnlo_opt.app.run.options import table as option_table
from nnlo_opt.app.run.workload import hdf5_check
from nnlo_opt.cli import tool
from nnlo_opt.core.base.clock import SystemClock
from nnlo_opt.core.base.errors import JournalError, NnloError
from nnlo_opt.core.base.files import ALL_FINITE, with_checksum
from nnlo_opt.core.base.safe_path import SafePath
from nnlo_opt.core.comm import messages as msg
from nnlo_opt.core.comm.topology import plan_single_block
from nnlo_opt.core.data.folds import single_fold
from nnlo_opt.core.search import start_points, warm_start
from nnlo_opt.core.space.fixing import fix
from nnlo_opt.core.training.history import as_nnlo_history
from nnlo_opt.core.training.options import TrainingOptions
from nnlo_opt.core.trials import checkpoint, deaths, run_lock, unrecorded
from nnlo_opt.core.trials import events as ev
from nnlo_opt.core.trials.journal import encode_line, read_events, run_of
from nnlo_opt.core.trials.ledger import Ledger
from nnlo_opt.core.trials.repair import Salvage, repair, salvage
from nnlo_opt.core.trials.run_directory import RunRequest, open_run
from nnlo_opt.core.trials.sync_mark import Mark
from nnlo_opt.core.trials.trial import FoldResult, Trial, UnrecordedFold
from nnlo_opt.engine.data import lists
from nnlo_opt.engine.data.hdf5 import source as hdf5
from nnlo_opt.engine.loading.spaces import load_space
from nnlo_opt.engine.models.keras import framework as keras_model
from nnlo_opt.engine.models.legacy import architecture as legacy_json
from nnlo_opt.engine.models.legacy import weight_files as hdf5_weights
from nnlo_opt.engine.runtime import timeline
from nnlo_opt.space import Space
from nnlo_opt.tools.launcher.supervisor import Standing

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.helpers.loopback_team import LoneTeam, linear_tasks
from tests.helpers.memory_source import linear_source

TESTS = Path(__file__).parents[2] / "tests"
LEGACY = TESTS / "engine" / "models" / "legacy"
SPACE_MODULE = b"""from nnlo_opt.space import Categorical, Integer, Real, When

parameter_range = [
    Real(1e-4, 0.5, "log-uniform", name="rate", likely=0.01),
    Integer(1, 9, name="n", step=2),
    Categorical(["relu", None, True, [1, 2]], name="kind"),
    Real(0.0, 1.0, name="drop", condition=When("n", 3, 5)),
]


def feasible(parameters):
    return parameters["rate"] * parameters["n"] < 3
"""
#: architecture of Keras 3
KERAS_3 = b"""{"module": "keras", "class_name": "Sequential", "config": {"name": "a", "layers": [
{"module": "keras.layers", "class_name": "InputLayer", "config": {"batch_shape": [null, 4, 4, 1], "name": "in"}},
{"module": "keras.layers", "class_name": "Conv2D", "config": {"name": "b", "filters": 2, "kernel_size": [3, 3]}},
{"module": "keras.layers", "class_name": "Flatten", "config": {"name": "c"}},
{"module": "keras.layers", "class_name": "Dense", "config": {"name": "d", "units": 3, "activation": "softmax"}}]}}"""
#: words of `nnlo-opt` that read a journal without another package; no words: the data frames of `load_run`
COMMANDS = (
    *("show {run}", "show {run} --trial 0", "status {run}", "status {run} --json", "list {root}", "best {run}"),
    *("compare {run} {other}", "compare {other} {run}", "best {run} --as command", "clean {run} --keep-weights best:1"),
    *("repair {run}", "enqueue {run} rate=0.01 --wait 0", "stop {run} --wait 0", "export {run} --to csv", "", ""),
)
#: options besides the examples of the table
GIVEN = (
    *(("--fix", "rate=0.01"), ("--fix", "kind=[1, 2]"), ("--start-point", "rate=0.01,n=3,kind='relu',drop=0.5")),
    *(("--class-weights", "{0: 1.0, 1: 5.0}"), ("--lr-schedule", "step:3:0.5")),
)


def figure(parameters: dict[str, Any], report: Callable[[int, float], bool]) -> float:
    if parameters["kind"] is None:
        raise ValueError("no kind")
    report(1, 1.0)
    return float(parameters["rate"])


def figures(parameters: dict[str, Any]) -> dict[str, float]:
    return {"loss": float(parameters["rate"]), "size": float(parameters["n"])}


def reported(ledger: Ledger, space: Space, number: int) -> None:
    """Do all that commands do with a ledger: its tables for some numbers only, as they take a hundred times as long."""
    json.dumps(results.summarise(ledger))
    if number % 4 == 0:
        results.results_frame(ledger).to_csv(index=False)
    if number % 32 == 0:
        table.trials_table(ledger, 80)
        table.trials_table(ledger, trials=table.ranked(ledger))
        table.pareto_table(ledger)
    Standing.of(ledger)
    if (theirs := ledger.identity.space) is not None:
        warm_start.adopted_observations(warm_start.observations_of(ledger.trials), theirs.names, space)


def rest_of_events(ledger: Ledger) -> list[ev.Event]:
    """Return events of the kinds that the journal of the first version has none of, to follow those of `ledger`."""
    now: Any = {"time_s": 99.0}
    a, now["trial"] = len(ledger.assignments), len(ledger.trials)
    one, two, three = (
        ev.FoldAssigned(**now, assignment=a + n, fold=0, attempt=1 + n, block=1, team=0, n_ranks=4) for n in range(3)
    )
    suggested, promoted = ev.TrialSuggested(**now, point={"n_units": 2}), ev.TrialPromoted(**now, n_rungs=1)
    paused = ev.TrialPaused(**now, figure_of_merit=0.5)
    pruned = ev.TrialPruned(**now, figure_of_merit=0.5, reason="worse")
    now.pop("trial")
    lost = ev.RanksLost(**now, ranks=[3, 4], block=1, team=0, n_alive=3, n_ranks=2, assignment=a + 1, counts=True)
    return [
        *(suggested, one, ev.AssignmentPaused(**now, assignment=a, epoch=1), paused, promoted, two, lost),
        *(ev.AssignmentLost(**now, assignment=a + 1, reason="died", counts=True), three),
        *(ev.AssignmentPreempted(**now, assignment=a + 2), ev.RunPreempted(**now, reason="time is over"), pruned),
    ]


def exact(value: Any) -> Any:
    """Return something that is equal if and only if the value is the same to the bit."""
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tobytes()
    if isinstance(value, Mapping):
        return {key: exact(item) for key, item in value.items()}
    return [exact(item) for item in value] if isinstance(value, list | tuple) else repr(value)


def of_files(
    folder: Path,
    call: Callable[[str], Any],
    forms: Mapping[str, tuple[Form, ...]],
    *,
    seal: Callable[[str, bytes], object] = lambda file, data: None,
    may_lose: bool = False,
    **more: Any,
) -> Reader:
    """Return a reader of the files in a folder, each damaged with its `forms`, by its name or ending.

    `call`: reads a file. `seal`: makes its checksum in another file anew. `may_lose`: nothing may be read in place of
    what was there.
    """
    files = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    known = {file: forms.get(file, forms.get(Path(file).suffix)) for file in files}
    seeds = {file: Seed(files[file], own) for file, own in known.items() if own is not None}
    sound = {file: call(file) for file in seeds}

    def read(file: str, data: bytes, sealed: bool) -> Any:
        (folder / file).write_bytes(data)
        if sealed:
            seal(file, data)
        try:
            return call(file)
        finally:
            for other in files if sealed else [file]:
                (folder / other).write_bytes(files[other])

    def differs(file: str, data: bytes, found: Any) -> str:
        return "" if found == sound[file] or (may_lose and not found) else "another content"

    return Reader(seeds=seeds, read=read, differs=differs, **more)


class Readers:
    """The readers, by the names of the methods.

    Args:
        folder: where their sound files are made.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        #: the last warning of the package
        self._said: deque[logging.LogRecord] = deque(maxlen=1)

    # ------------------------------------------------------------ the journal

    def journal(self) -> Reader:
        known: set[int] = set()

        def read(name: str, data: bytes, sealed: bool) -> int:
            events, n_sound = read_events(data, "journal")
            # What is not sealed anew is the beginning of a sound journal, of which there are few.
            if sealed or (sound := zlib.crc32(data[:n_sound])) not in known:
                reported(Ledger(events), self._space, zlib.crc32(data))
                known.update([] if sealed else [sound])
            return n_sound

        def differs(name: str, data: bytes, n_sound: int) -> str:
            if not any(seed.data.startswith(data[:n_sound]) for seed in self._journals.values()):
                return "other lines than those of a run"
            mark = Mark(len(self._journals[name].data), run_of(self._journals[name].data))
            with suppress(JournalError):
                if run_of(data) == mark.run and read_events(data, "journal", mark)[1] < mark.n_bytes:
                    return "lines before the mark are missing"
            return ""

        return Reader(seeds=self._journals, read=read, differs=differs)

    def commands(self) -> Reader:
        """One of the commands for each journal; half of the journals end before their search does."""
        whole = dict(self._journals)
        for name, seed in self._journals.items():
            lines = seed.data.split(b"\n")
            whole[f"{name} under way"] = Seed(b"\n".join(lines[: len(lines) * 2 // 3]) + b"\n", (JOURNAL,))

        def read(name: str, data: bytes, sealed: bool) -> None:
            with tempfile.TemporaryDirectory(dir=self._folder) as root, redirect_stderr(StringIO()):
                run = Path(root) / "run"
                run.mkdir()
                (run / "journal.jsonl").write_bytes(data)
                words = COMMANDS[zlib.crc32(data) % len(COMMANDS)]
                if words:
                    tool.main([word.format(run=run, root=root, other=self._folder / "one") for word in words.split()])
                    return
                with suppress(NnloError):
                    found = nnlo_opt.load_run(run)
                    found.to_dataframe(), found.to_dataframe("folds"), found.to_dataframe("epochs"), repr(found)

        return Reader(seeds=whole, read=read, allowed=())

    def salvage(self) -> Reader:
        whole = [read_events(seed.data, name)[0] for name, seed in self._journals.items()]
        points = [[trial.point for trial in Ledger(events).trials] for events in whole]

        def read(name: str, data: bytes, sealed: bool) -> Salvage:
            found = salvage(BytesIO(data), "journal")
            again = b"".join(encode_line(seq, event, "0" * 16) for seq, event in enumerate(found.events))
            assert read_events(again, "again")[0] == found.events, "the repaired journal is read as another"
            assert salvage(BytesIO(again), "again").events == found.events, "a second repair takes something away"
            number = zlib.crc32(data)
            if sealed or number % 8 == 0:
                reported(Ledger(found.events), self._space, number)
            return found

        def differs(name: str, data: bytes, found: Salvage) -> str:
            kept = [trial.point for trial in Ledger(found.events).trials]
            if not any(all([kept[new]] == of[old : old + 1] for old, new in found.moved.items()) for of in points):
                return "a trial has moved to another number"
            if found.gaps or found.n_damaged or found.dropped or found.lost or found.events in whole:
                return ""
            # Of a file that ends between two lines, only the mark knows more.
            lines = b"\n".join(filter(None, data.split(b"\n")))
            return "" if any(seed.data.startswith(lines) for seed in self._journals.values()) else "events are missing"

        return Reader(seeds=self._journals, read=read, differs=differs)

    def repair(self) -> Reader:
        journals = {name: seed for name, seed in self._journals.items() if (self._folder / name).is_dir()}
        marks = {f"{name} mark": Seed((self._folder / name / "journal.synced").read_bytes()) for name in journals}

        def read(name: str, data: bytes, sealed: bool) -> int:
            """Return the number of lines; -1 if they were repaired."""
            of = name.removesuffix(" mark")
            with tempfile.TemporaryDirectory(dir=self._folder) as root:
                path = Path(root) / "run" / "journal.jsonl"
                (path.parent / "trials" / "0001").mkdir(parents=True)
                path.write_bytes(data if name == of else journals[of].data)
                path.with_name("journal.synced").write_bytes(marks[f"{of} mark"].data if name == of else data)
                before, done = path.read_bytes(), repair(path.parent)
                assert done is None or done[1].read_bytes() == before, "the damaged journal is not kept"
                open_run(RunRequest(root=Path(root), name="run", restore=True), "run").close()
                return -1 if done is not None else path.read_bytes().count(b"\n")

        def differs(name: str, data: bytes, n_lines: int) -> str:
            sound = journals[name.removesuffix(" mark")].data
            is_own = name not in journals or run_of(data) == run_of(sound)
            return "lines before the mark are missing" if is_own and 0 <= n_lines < sound.count(b"\n") else ""

        return Reader(seeds=journals | marks, read=read, differs=differs)

    # ------------------------------------------------------------ checkpoints and notes

    def checkpoint(self) -> Reader:
        kept = next(self._folds[0].glob("checkpoint-*"))
        folder = self._make(kept.name, {path.name: path.read_bytes() for path in kept.iterdir()})
        manifest = json.loads((folder / "manifest.json").read_bytes())

        def call(_: str) -> Any:
            place = SafePath.of(folder)
            found = checkpoint.load(place)
            local = {worker: checkpoint.load_state(place, worker) for worker in found.remembering}
            groups = {key: checkpoint.load_state(place, range(key[0], key[1] + 1)) for key in found.groups_remembering}
            plain = [found.epoch, found.n_samples_inside, found.master, found.workers]
            return exact([plain, found.arrays, local, groups])

        def seal(file: str, data: bytes) -> None:
            if file != "manifest.json":
                own = {file: {"size": len(data), "crc32": f"{zlib.crc32(data):08x}"}}
                anew = {"epoch": manifest["epoch"], "files": manifest["files"] | own}
                (folder / "manifest.json").write_text(with_checksum(anew) if "crc" in manifest else json.dumps(anew))

        forms = {".npz": (ARCHIVE,), ".json": (RESEALED,), "manifest.json": (SEALED, JSON)}
        return of_files(folder, call, forms, seal=seal)

    def weights(self) -> Reader:
        folder = self._make("weights", {"weights.npz": (self._folds[1] / "weights.npz").read_bytes()})
        return of_files(folder, lambda _: exact(checkpoint.load_weights(SafePath(folder))), {".npz": (ARCHIVE,)})

    def history(self) -> Reader:
        def call(_: str) -> None:
            as_nnlo_history(history_of(self._folder / "training", Trial(number=1, point={}), 0), 2)

        return of_files(self._folds[1], call, {"history.json": (JSON,)})

    def timeline(self) -> Reader:
        run = self._make("traced")
        for rank in range(2):
            traced = timeline.RankTimeline(rank, f"rank {rank}", SystemClock())
            with traced.span("epoch", epoch=1), traced.span("wait", "wait"):
                traced.open(run)
            traced.close()

        def call(_: str) -> None:
            if (whole := timeline.merge_timelines(run)) is not None:
                json.loads(whole.read_bytes(), **ALL_FINITE)

        return of_files(run / "timeline", call, {".json": (TRACE,)})

    def owner(self) -> Reader:
        mine = run_lock.this_process()
        first = {key: mine[key] for key in ("host", "pid", "boot")}  # of the first version, without a checksum
        files = {"run.owner": with_checksum(mine), "first.owner": json.dumps(first)}
        owned = self._make("owned")
        run = self._make("notes", {name: text.encode() for name, text in files.items()})

        def call(file: str) -> Any:
            (owned / run_lock.OWNER_NAME).write_bytes((run / file).read_bytes())
            found = run_lock.read_owner(owned)
            if file == "run.owner" and found in (None, mine):  # the lock waits for a sign of life of anybody else
                run_lock.RunLock(owned, 0.0).close()
            # Nobody can tell whether a note without a checksum is as it was, or was one.
            is_plain = file == "first.owner" or (found is not None and found.keys() == first.keys())
            return None if is_plain else found

        return of_files(run, call, {".owner": (SEALED, JSON)}, may_lose=True)

    def deaths(self) -> Reader:
        run = self._make("lost")
        deaths.leave_note(run, deaths.Death(world_rank=2, team=1, host="a", how="ended by signal 9"))

        def call(_: str) -> None:
            deaths.first_by_team(deaths.read_notes(run))

        return of_files(run / "deaths", call, {".json": (JSON,)})

    def unrecorded(self) -> Reader:
        run, result = self._make("left"), FoldResult(figure_of_merit=0.5, metrics={"loss": 0.5}, n_epochs=2, train_s=1)
        point = {"rate": 0.5, "kind": None}
        unrecorded.keep(run, UnrecordedFold(assignment=1, trial=1, fold=0, attempt=1, point=point, result=result))

        def call(_: str) -> Any:
            self._said.clear()
            return unrecorded.read(run) or ("" if self._said else "no fold, and no word about it")

        return of_files(run / "unrecorded", call, {".json": (SEALED, JSON)}, may_lose=True)

    # ------------------------------------------------------------ files and texts of users

    def list(self) -> Reader:
        folder = self._make("lists", {f"{letter}.h5": letter.encode() * 50 for letter in "abc"})
        lists.write_list(folder / "train.list", sorted(folder.iterdir()))
        lists.write_sums(folder / "train.list", lists.read_list(folder / "train.list"))

        def call(_: str) -> Any:
            files = set(lists.read_list(folder / "train.list"))
            lists.verify(folder / "train.list")
            return files

        return of_files(folder, call, {".list": (), ".sha256": ()})

    def space(self) -> Reader:
        folder = self._make("spaces", {"space.py": SPACE_MODULE})

        def call(file: str) -> None:
            load_space(str(folder / file)).sample(np.random.default_rng(0))

        return of_files(folder, call, {".py": ()}, isolated=True)

    def space_json(self) -> Reader:
        def read(_: str, data: bytes, __: bool) -> None:
            value = None
            with suppress(ValueError, RecursionError):  # the journal and messages are read before
                value = json.loads(data)
            space = Space.from_json(value)
            space.draw(np.random.default_rng(0))
            space.difference(self._space)
            json.dumps(space.to_json())

        return Reader(seeds={"space": Seed(json.dumps(self._space.to_json()).encode(), (JSON, JSON))}, read=read)

    def architecture(self) -> Reader:
        return self._architecture(legacy_json.read_architecture)

    def keras(self) -> Reader:
        keras_model.import_framework(1)
        return self._architecture(keras_model.model_from_architecture, isolated=True)

    def _architecture(self, call: Callable[[str, str], object], *, isolated: bool = False) -> Reader:
        seeds = {path.stem: Seed(path.read_bytes(), (JSON,)) for path in LEGACY.glob("*.json")}

        def read(_: str, data: bytes, __: bool) -> None:
            call(data.decode(errors="replace"), "a.json")

        return Reader(seeds=seeds | {"keras_3": Seed(KERAS_3, (JSON,))}, read=read, isolated=isolated)

    def hdf5(self) -> Reader:
        folder, rng = self._make("data"), np.random.default_rng(0)
        x, y = rng.random((6, 4), np.float32), np.arange(6) % 2
        packed: Any = {"chunks": (2, 4), "compression": "gzip", "shuffle": True, "fletcher32": True}
        for libver in ("earliest", "latest"):
            for kind in ("plain", "group", "padded", "rows", "packed"):
                with h5py.File(folder / f"{kind}-{libver}.h5", "w", libver=libver) as file:
                    file["y"], file["who"] = y, ["a", "b", "c"] * 2
                    file["x_length" if kind == "padded" else "lengths"] = y + 1
                    if kind == "rows":
                        made = file.create_dataset("x", 6, h5py.vlen_dtype(np.float64))
                        made.attrs["row_shape"] = 2
                        for number in range(6):
                            made[number] = rng.random(2 * number)
                    elif kind == "group":
                        file["x/a"], file["x/b"] = x, y
                    else:
                        file.create_dataset("x", data=x, **(packed if kind == "packed" else {}))

        def call(name: str) -> None:
            source = hdf5.Hdf5Source([folder / name], "x", "y")
            source.read(np.arange(min(source.info.n_samples, 1000)))
            source.read_labels()
            source.read_column("who")

        def check(name: str, data: bytes) -> None:
            (folder / name).write_bytes(data)
            hdf5_check.check_files([folder / name], ("x", "y", "who"), external=False)

        return of_files(folder, call, {".h5": ()}, isolated=True, check=check)

    def hdf5_weights(self) -> Reader:
        folder = self._make("legacy", {path.name: path.read_bytes() for path in LEGACY.glob("*.h5")})

        def call(file: str) -> None:
            hdf5_weights.read_saved_weights(folder / file)

        def check(file: str, data: bytes) -> None:
            (folder / file).write_bytes(data)
            hdf5_check.check_files((), (), [folder / file], external=False)

        return of_files(folder, call, {".h5": ()}, isolated=True, check=check)

    def options(self) -> Reader:
        drivers: Any = {
            "OptimizationDriver": (run_options.optimization_options, option_table.OPTIMIZATION_OPTIONS),
            "TrainingDriver": (run_options.training_options, option_table.TRAINING_OPTIONS),
        }
        seeds = {}
        for driver, (_, known) in drivers.items():
            for words in [*((option.flag, *[option.example] * bool(option.metavar)) for option in known), *GIVEN]:
                seeds[f"{driver} {words}"] = Seed("\n".join(("--model", "m.py", *words)).encode())

        def read(name: str, data: bytes, sealed: bool) -> None:
            argv = data.decode(errors="surrogateescape").replace("\0", "").split("\n")
            driver = name.partition(" ")[0]
            make, _ = drivers[driver]
            made = make(driver_parser(driver).given(normalise(argv)), argv)
            start_points.check_start_points(fix(self._space, made.fix), made.search.start_points)

        return Reader(seeds=seeds, read=read, allowed=(NnloError, HelpRequested))

    # ------------------------------------------------------------ sound files

    def _make(self, name: str, files: Mapping[str, bytes] | None = None) -> Path:
        """Make a folder with files."""
        (self._folder / name).mkdir()
        for file, data in (files or {}).items():
            (self._folder / name / file).write_bytes(data)
        return self._folder / name

    @cached_property
    def _space(self) -> Space:
        return load_space(str(self._make("space", {"space.py": SPACE_MODULE}) / "space.py"))

    @cached_property
    def _journals(self) -> dict[str, Seed]:
        """Journals by name: `old` has no identity, and `trained` has events of all kinds."""
        for target, name, more in (
            (figure, "one", {"num_iterations": 2}),
            (figure, "resumed", {"num_iterations": 2}),
            (figure, "resumed", {"num_iterations": 4, "opt_restore": True}),
            (figures, "two", {"num_iterations": 3, "objective": ["loss:min", "size:max"]}),
        ):
            given: Any = {"checkpoint": str(self._folder / name), "hyper_opt": "random", "seed": 3, **more}
            nnlo_opt.optimize(target, self._space, **given)
        found = {name: (self._folder / name / "journal.jsonl").read_bytes() for name in ("one", "resumed", "two")}
        found["old"] = (TESTS / "golden" / "journal-format-1.jsonl").read_bytes()
        events, run = read_events(found["old"], "old")[0], run_of(found["one"])[::-1]
        events += rest_of_events(Ledger(events))
        found["trained"] = b"".join(encode_line(seq, event, run) for seq, event in enumerate(events))
        return {name: Seed(data, (JOURNAL,)) for name, data in found.items()}

    @cached_property
    def _folds(self) -> Any:
        """Folders of a fold with a checkpoint of its second epoch, and of a fold that is trained."""
        asked = {"batch": 4, "epochs": 3, "mode": "easgd", "elastic_momentum": 0.5, "optimizer": "sgd"}
        given = TrainingOptions.of(asked)
        tasks = linear_tasks(linear_source(26), [single_fold(20, 6)], given)
        for trial in (0, 1):
            team = LoneTeam(self._folder / "training", given, tasks, plan_single_block(7, n_masters=3))
            team.run_fold(trial=trial)
            while len(team.reported(msg.EpochReported)) < 2 or (trial and not team.reported(msg.FoldFinished)):
                team.step()
        return [Path(str(checkpoint.fold_directory(self._folder / "training", trial, 0))) for trial in (0, 1)]

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """Keep what readers say from the terminal."""
        logger, handler = logging.getLogger("nnlo_opt"), logging.Handler(logging.WARNING)
        handler.emit = self._said.append  # type: ignore[method-assign]
        logger.addHandler(handler)
        propagates, logger.propagate = logger.propagate, False
        try:
            with warnings.catch_warnings(), redirect_stdout(StringIO()):
                warnings.simplefilter("ignore")
                yield
        finally:
            logger.removeHandler(handler)
            logger.propagate = propagates


#: names of all readers; `keras` comes last, as it imports the framework
NAMES = sorted((name for name in vars(Readers) if name[0] != "_" and name != "quiet"), key=lambda name: name == "keras")
