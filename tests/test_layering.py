"""The separation the design promises: who may import what. Imports inside functions count, and so do processes.

A folder that is new stands in `ORDER`, and fails here until it does.
"""

import ast
import json
import sys

import pytest

from tests.helpers.launcher import python
from tests.helpers.sources import ROOT, SOURCES, house_imports_of, imports_of, tree_of

REPOSITORY = ROOT.parent


#: the parts of the package from the bottom to the top: a part imports from itself and from those before it
PARTS = ("core", "engine", "app", "tools", "ancestors")
#: what users import beside the names of `nnlo_opt`; no part imports it
PUBLIC = ("allreduce", "controller", "extend", "integrations", "models", "space", "testing")
#: what puts the parts together: the command line, and the names of `nnlo_opt`, which are imported when they are used
ABOVE = ("cli", "moved", "__init__")
#: folders of the parts from the bottom to the top; a module imports from its own folder and from those before it
ORDER = (
    "core.base",
    "core.space",
    "core.update_rules",
    "core.training",
    "core.trials",
    "core.comm",
    "core.jobs",
    "core.data",
    "core.models",
    "core.search",
    "core.coordinator",
    "core.block",
    "engine.runtime",
    "engine.loading",
    "engine.comm",
    "engine.data",
    "engine.models.legacy",
    "engine.models",
    "engine.search",
    "engine.objective",
    "app.analysis",
    "app.reporting",
    "app.run",
    "app.api",
    "app.commands",
    "tools.export",
    "tools.launcher",
    "tools.doctor",
    "tools.simulate",
    "ancestors",
)


def modules_of(table: dict[str, str]) -> list[str]:
    """`{"core.block": "task"}` -> `core.block.task`."""
    return [f"{folder}.{name}" for folder, names in table.items() for name in names.split()]


#: folder -> its modules that are only values, formulas and protocols, as all of `core.space` and `core.update_rules`
#: are: no third-party package but NumPy, and msgspec at its door
PURE_DATA: dict[str, str] = {
    "core.base": "errors clock files logs pulse records safe_path spelling timeline trees user_code vectors",
    "core.training": "options history schedules stopping",
    "core.trials": "trial events identity joined_job ledger objectives figure",
    "core.comm": "calls messages objective_messages run_messages codec topology transport",
    "core.jobs": "files",
    "core.data": "source folds batches order ragged weights",
    "core.models": "adapter layout",
    "core.search": "base",
    "engine.runtime": "mpi_kind",
    "engine.models": "losses legacy.architecture legacy.layers",
}
#: folder -> its modules that decide: besides, no file, clock, process or random state of its own
PURE_DECISIONS: dict[str, str] = {
    "core.coordinator": "ending instructions outcomes policy membership shared_state state suggestions",
    "core.jobs": "liveness roster",
    "core.block": "exchange.rounds master.instructions master.state master.submaster_state",
    "core.search": "random design encoding genetic grid start_points curves pruners pruning racing targets warm_start "
    "scalarisation",
    "engine.objective": "epochs forms other_names signature values",
    "tools.launcher": "batch_script planning supervisor",
    "tools.doctor": "judgement",
    "tools.simulate": "workload",
}
DECISIONS = modules_of(PURE_DECISIONS)
PURE = ["__init__", "core.space", "core.update_rules", *modules_of(PURE_DATA), *DECISIONS]

#: third-party packages and the only places that may import them; NumPy may be imported everywhere
DOORS: dict[str, list[str]] = {
    "mpi4py": ["engine.comm.mpi"],
    "skopt": ["engine.search.skopt_search"],
    "scipy": [
        "core.search.acquisition",
        "core.search.gaussian_process",
        "core.search.margins",
        "core.search.maximisation",
        "core.search.sobol",
    ],
    "threadpoolctl": ["engine.search.process", "app.reporting.page_data"],
    "optuna": ["engine.search.optuna_search", "engine.search.optuna_reading", "tools.export.optuna_study"],
    "yaml": ["app.commands.best", "app.commands.driver_options"],
    "cmaes": ["engine.search.cmaes_search"],
    "h5py": ["engine.data.hdf5", "engine.models.legacy.weight_files"],
    "keras": ["engine.models", "allreduce.callbacks", "integrations.keras", "models"],
    "tensorflow": ["engine.models"],
    "jax": ["engine.models"],
    "torch": ["engine.models", "engine.objective.torch_group", "models"],
    "lightning": ["integrations.lightning"],
    "transformers": ["integrations.transformers"],
    "mlxtend": ["engine.data.sets.image_files"],
    "pooch": ["engine.data.sets.download"],
    "msgspec": ["core.base.records"],
    "pandas": ["app.analysis.frames", "tools.export.tables"],
    "matplotlib": ["app.reporting.plots"],
    "psutil": [
        "engine.data.cache",
        "engine.data.memory",
        "engine.runtime.monitor",
        "engine.runtime.peers",
        "tools.doctor.examination",
        "tools.launcher.job",
    ],
    "pynvml": ["engine.runtime.nvidia"],
    "rich": ["tools.doctor.command", "app.reporting"],
    "tensorboard": ["tools.export.tensorboard_runs"],
    "mlflow": ["tools.export.mlflow_runs"],
    "wandb": ["tools.export.wandb_runs"],
    "pytest": ["testing"],
}

FRAMEWORKS = ["engine.models.keras.framework", "engine.models.torch.framework"]
#: adapters that have an in-memory twin: whoever needs one is handed it, and only the application says which
NAMED_BY_RUN = [
    "engine.comm.mpi",
    "core.comm.loopback",
    "engine.data.hdf5.source",
    *FRAMEWORKS,
    "engine.search.process",
]
#: an adapter may be put together of parts, and found by a table
OWN_PARTS = {
    "engine.comm": ["engine.comm"],
    "engine.models.builders": FRAMEWORKS,
    "engine.models.framework": FRAMEWORKS,
}

#: nothing of this may come with what the coordinator and the master import
HEAVY = ["keras", "tensorflow", "torch", "jax", "skopt", "sklearn", "scipy", "h5py", "pandas", "optuna", "tensorboard"]


#: the package that tests and extensions share: it may use all but `app.api` and `cli`, and nobody uses it
OF_THE_HOUSE = [name for name in SOURCES if name.split(".")[0] != "testing"]


def is_in(name: str, places: list[str]) -> bool:
    return any(name == place or name.startswith(place + ".") for place in places)


def floor_of(name: str) -> int:
    """Number in `ORDER`, from 1, of the innermost folder of a module; 0 for the names of `nnlo_opt`."""
    folders = [folder for folder in ORDER if is_in(name, [folder])]
    return ORDER.index(max(folders, key=len)) + 1 if folders else 0


def foreign_packages_of(name: str) -> set[str]:
    """Third-party packages that a module of ours imports, NumPy aside."""
    packages = {imported.split(".")[0] for imported in imports_of(SOURCES[name])}
    return packages - set(sys.stdlib_module_names) - {"nnlo_opt", "numpy"}


def test_every_folder_has_its_place():
    known = {*PARTS, *PUBLIC, *ABOVE}
    assert {path.stem for path in ROOT.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()} == known
    folders = {f"{part}.{path.parent.name}" for part in PARTS for path in ROOT.glob(f"{part}/*/__init__.py")}
    assert folders == {name for name in ORDER if name.count(".") == 1} | {"ancestors.manager", "ancestors.scripts"}


def test_the_core_imports_nothing_of_ours_but_itself():
    for name in (name for name in SOURCES if is_in(name, ["core"])):
        assert not [other for other in house_imports_of(name) - {"__init__"} if not is_in(other, ["core"])], name


def test_no_part_imports_one_after_it():
    for i, part in enumerate(PARTS):
        # The built-in models are the ancestors' models.
        known = [*PARTS[: i + 1], *["models"] * (part == "ancestors")]
        for name in (name for name in SOURCES if is_in(name, [part])):
            assert not [other for other in house_imports_of(name) - {"__init__"} if not is_in(other, known)], name


def test_folders_of_the_parts_only_say_what_they_hold():
    """A folder that imports its modules makes each of them cost what all do; the doors lie beside the parts."""
    with_code = {"engine.comm.mpi", "ancestors.scripts"}  # settings that precede any of their modules
    folders = {".".join(path.parent.relative_to(ROOT).parts): path for path in ROOT.rglob("*/__init__.py")}
    inside = {name: path for name, path in folders.items() if is_in(name, [*PARTS]) and name not in with_code}
    assert not [name for name, path in inside.items() if len(tree_of(path).body) > 1]


def test_modules_have_at_most_600_lines():
    assert not {name: n for name, path in SOURCES.items() if (n := len(path.read_text().splitlines())) > 600}


def test_folders_import_one_way():
    for name in (name for name in SOURCES if floor_of(name)):
        used = house_imports_of(name) - {"__init__"}
        assert not [other for other in used if floor_of(other) > floor_of(name)], name


def test_no_modules_import_each_other_in_a_circle():
    left = {name: house_imports_of(name) & SOURCES.keys() for name in SOURCES}
    while free := [name for name in left if not left[name] & left.keys() or not any(name in left[n] for n in left)]:
        left = {name: others for name, others in left.items() if name not in free}
    assert not left


def test_the_api_and_the_command_line_do_not_import_each_other():
    for side, other in (("app.api", "app.commands"), ("app.commands", "app.api")):
        known = {imported for name in SOURCES if is_in(name, [side]) for imported in house_imports_of(name)}
        assert not [imported for imported in known if is_in(imported, [other])]


def test_pure_modules_import_no_adapter_and_no_foreign_package():
    assert not [name for name in PURE if name not in SOURCES]
    for name in (name for name in SOURCES if is_in(name, PURE) and name != "__init__"):
        assert not [other for other in house_imports_of(name) if not is_in(other, PURE)], name
        assert not foreign_packages_of(name) - {"msgspec"}, name


def test_decisions_use_no_files_no_clock_and_no_processes():
    outside = {"os", "pathlib", "subprocess", "threading", "socket", "time", "random", "tempfile", "shutil", "signal"}
    for name in (name for name in SOURCES if is_in(name, DECISIONS)):
        assert not {imported.split(".")[0] for imported in imports_of(SOURCES[name])} & outside, name
        assert not house_imports_of(name) & {"core.base.files", "core.base.clock"}, name


@pytest.mark.parametrize(("side", "other"), [("core.coordinator", "core.block"), ("core.block", "core.coordinator")])
def test_coordinator_and_block_know_each_other_by_messages_only(side, other):
    known = [imported for name in SOURCES if is_in(name, [side]) for imported in house_imports_of(name)]
    assert not [imported for imported in known if is_in(imported, [other])]
    assert "core.comm.messages" in known


def test_third_party_packages_come_in_by_their_doors():
    for name in SOURCES:
        assert not [used for used in foreign_packages_of(name) if not is_in(name, DOORS.get(used, []))], name


def test_only_the_application_names_the_adapters_that_have_a_twin():
    named = [
        f"{name} names {other}"
        for name in OF_THE_HOUSE
        for other in house_imports_of(name)
        if is_in(other, NAMED_BY_RUN)
        and not is_in(name, ["app", "tools", "ancestors", "cli", *PUBLIC])
        and not any(is_in(name, [place]) and is_in(other, parts) for place, parts in OWN_PARTS.items())
    ]
    assert not named


def test_the_testing_package_is_used_by_tests_alone_and_imports_no_entry_point():
    for name in SOURCES:
        forbidden = ["cli", "app.api"] if is_in(name, ["testing"]) else ["testing"]
        assert not [other for other in house_imports_of(name) if is_in(other, forbidden)], name


def test_nothing_is_pickled():
    picklers = {"pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}
    assert not [name for name, path in SOURCES.items() if {i.split(".")[0] for i in imports_of(path)} & picklers]


def test_only_the_application_and_those_above_it_print():
    prints = [
        f"{name} line {node.lineno}"
        for name, path in SOURCES.items()
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
        # Its standard output is its protocol.
        if not is_in(name, ["cli", "app", "tools", "ancestors", "engine.search.serve"])
    ]
    assert not prints


def test_drivers_are_the_same_and_import_the_entry_points_and_nothing_else():
    first, *others = sorted((REPOSITORY / "drivers").glob("*.py"))
    assert {path.read_text() for path in others} == {first.read_text()}
    assert [name for name in imports_of(first) if name.startswith("nnlo_opt")] == ["nnlo_opt.cli.main.script"]


def modules_after(statement: str) -> set[str]:
    """Top-level packages in a fresh interpreter after `statement`."""
    program = f"import sys, json\n{statement}\nprint(json.dumps(sorted(sys.modules)))"
    done = python(program, cwd=REPOSITORY).expect(0)
    return {name.split(".")[0] for name in json.loads(done.out.splitlines()[-1])}


@pytest.mark.parametrize(
    "statement",
    [
        "import nnlo_opt.app.run.start.search, nnlo_opt.core.block.master.master",
        "import nnlo_opt.app.run.start.training, nnlo_opt.app.run.rank.roles, nnlo_opt.cli.main",
        "import nnlo_opt.space",
        "import nnlo_opt.app.reporting.follow",
        "import nnlo_opt.tools.export.mirror",
    ],
)
def test_what_the_coordinator_the_master_and_the_reporter_need_is_light(statement):
    assert not modules_after(statement) & set(HEAVY)


@pytest.mark.parametrize(
    "statement",
    [
        "import nnlo_opt.core.coordinator.coordinator, nnlo_opt.core.block.master.master",
        "import nnlo_opt.core.block.worker.worker",
        "import nnlo_opt.app.commands.getdata, nnlo_opt.ancestors.buildmodel, nnlo_opt.cli.tool",
        "import nnlo_opt.engine.search.serve",
        "import nnlo_opt.tools.simulate.command",
    ],
)
def test_what_needs_no_ranks_imports_no_mpi(statement):
    assert "mpi4py" not in modules_after(statement)
