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


def modules_of(table: dict[str, str]) -> list[str]:
    """`{"block": "task"}` -> `block.task`; the modules of the root have no folder."""
    return [f"{folder}.{name}".lstrip(".") for folder, names in table.items() for name in names.split()]


#: the folders of the package from the bottom to the top; a module imports from its own folder and from those below it.
#: The modules of the root are below all of them.
ORDER = (
    "runtime",
    "space",
    "update_rules",
    "training",
    "trials",
    "comm",
    "data",
    "compat.keras",
    "models",
    "search",
    "coordinator",
    "block",
    "objective",
    "analysis",
    "reporting",
    "export",
    "launcher",
    "doctor",
    "simulate",
    "run",
    "testing",
    "api",
    "compat",
    "cli",
    "allreduce",
    "controller",
    "integrations",
)
#: folder -> its modules that are only values, formulas and protocols, as all of `space` and `update_rules` are: no
#: third-party package but NumPy, and msgspec at its door
PURE_DATA: dict[str, str] = {
    "runtime": "mpi_kind",
    "": "__init__ errors clock files records safe_path trees user_files vectors",
    "training": "options history schedules stopping",
    "trials": "trial events identity ledger objectives figure",
    "comm": "calls messages objective_messages run_messages codec topology transport",
    "data": "source folds batches order ragged weights",
    "compat.keras": "architecture layers",
    "models": "adapter layout losses",
    "search": "base",
}
#: folder -> its modules that decide: besides, no file, clock, process or random state of its own
PURE_DECISIONS: dict[str, str] = {
    "coordinator": "ending instructions outcomes policy membership state suggestions",
    "block": "exchange.rounds master.instructions master.state master.submaster_state",
    "objective": "epochs forms other_names signature values",
    "search": "random design encoding genetic grid start_points curves pruners pruning racing targets warm_start "
    "scalarisation",
    "launcher": "planning supervisor",
    "doctor": "judgement",
    "simulate": "workload",
}
#: folders and modules that stand within those above and touch the world
NOT_PURE = ["space.loading"]
DECISIONS = modules_of(PURE_DECISIONS)
PURE = ["space", "update_rules", *modules_of(PURE_DATA), *DECISIONS]

#: third-party packages and the only places that may import them; NumPy may be imported everywhere
DOORS: dict[str, list[str]] = {
    "mpi4py": ["comm.mpi"],
    "skopt": ["search.skopt_search"],
    "scipy": ["search.acquisition", "search.gaussian_process", "search.margins", "search.maximisation", "search.sobol"],
    "threadpoolctl": ["search.process", "reporting.page_data"],
    "optuna": ["search.optuna_search", "export.optuna_study"],
    "yaml": ["cli.best", "cli.driver_options"],
    "cmaes": ["search.cmaes_search"],
    "h5py": ["data.hdf5", "compat.keras.weight_files"],
    "keras": ["models", "compat.keras", "allreduce.callbacks", "integrations.keras"],
    "tensorflow": ["models"],
    "jax": ["models"],
    "torch": ["models", "objective.torch_group"],
    "lightning": ["integrations.lightning"],
    "transformers": ["integrations.transformers"],
    "mlxtend": ["data.sets.image_files"],
    "pooch": ["data.sets.download"],
    "msgspec": ["records"],
    "pandas": ["analysis.frames", "export.tables"],
    "matplotlib": ["reporting.plots"],
    "psutil": ["data.cache", "data.memory", "doctor.examination", "launcher.job", "runtime.monitor", "runtime.peers"],
    "pynvml": ["runtime.nvidia"],
    "rich": ["cli.doctor", "reporting"],
    "tensorboard": ["export.tensorboard_runs"],
    "mlflow": ["export.mlflow_runs"],
    "wandb": ["export.wandb_runs"],
    "pytest": ["testing"],
}

FRAMEWORKS = ["models.keras.framework", "models.torch.framework"]
#: adapters that have an in-memory twin: whoever needs one is handed it, and only `run` says which
NAMED_BY_RUN = ["comm.mpi", "comm.loopback", "data.hdf5.source", *FRAMEWORKS, "search.process"]
#: within one package an adapter may be put together of parts
OWN_PACKAGE = {
    "comm.mpi.agreed_calls": ["comm.mpi.parts"],
    "comm.mpi.transport": ["comm.mpi.parts", "comm.mpi.ulfm"],
    "comm.rank_group": ["comm.mpi.parts", "comm.mpi.world"],
    "comm.mpi.world": ["comm.mpi.transport", "comm.mpi.ulfm"],
    "models.builders": FRAMEWORKS,
    "models.framework": FRAMEWORKS,
}

#: nothing of this may come with what the coordinator and the master import
HEAVY = ["keras", "tensorflow", "torch", "jax", "skopt", "sklearn", "scipy", "h5py", "pandas", "optuna", "tensorboard"]


#: the package that tests and extensions share: it may use all but `api` and `cli`, and nobody uses it
OF_THE_HOUSE = [name for name in SOURCES if name.split(".")[0] != "testing"]


def is_in(name: str, places: list[str]) -> bool:
    return any(name == place or name.startswith(place + ".") for place in places)


def floor_of(name: str) -> int:
    """Number in `ORDER`, from 1, of the innermost folder of a module that stands there; 0 for a module of the root."""
    folders = [folder for folder in ORDER if is_in(name, [folder])]
    return ORDER.index(max(folders, key=len)) + 1 if folders else 0


def foreign_packages_of(name: str) -> set[str]:
    """Third-party packages that a module of ours imports, NumPy aside."""
    packages = {imported.split(".")[0] for imported in imports_of(SOURCES[name])}
    return packages - set(sys.stdlib_module_names) - {"nnlo_opt", "numpy"}


def test_every_folder_has_its_place_in_the_order():
    assert {path.parent.name for path in ROOT.glob("*/__init__.py")} == {name for name in ORDER if "." not in name}


def test_the_root_holds_at_most_eight_modules():
    assert len([path for path in ROOT.glob("*.py") if path.stem != "__init__"]) <= 8


def test_modules_have_at_most_600_lines():
    assert not {name: n for name, path in SOURCES.items() if (n := len(path.read_text().splitlines())) > 600}


def test_imports_go_one_way():
    for name in SOURCES:
        used = house_imports_of(name) - {"__init__"}
        assert not [other for other in used if floor_of(other) > floor_of(name)], name


def test_no_modules_import_each_other_in_a_circle():
    left = {name: house_imports_of(name) & SOURCES.keys() for name in SOURCES}
    while free := [name for name in left if not left[name] & left.keys() or not any(name in left[n] for n in left)]:
        left = {name: others for name, others in left.items() if name not in free}
    assert not left


def test_the_api_and_the_command_line_do_not_import_each_other():
    for side, other in (("api", "cli"), ("cli", "api")):
        known = {imported for name in SOURCES if is_in(name, [side]) for imported in house_imports_of(name)}
        assert not [imported for imported in known if is_in(imported, [other])]


def test_pure_modules_import_no_adapter_and_no_foreign_package():
    assert not [name for name in PURE if name not in SOURCES]
    for name in (name for name in SOURCES if is_in(name, PURE) and not is_in(name, NOT_PURE)):
        assert not [other for other in house_imports_of(name) if not is_in(other, PURE) or is_in(other, NOT_PURE)], name
        assert not foreign_packages_of(name) - {"msgspec"}, name


def test_decisions_use_no_files_no_clock_and_no_processes():
    outside = {"os", "pathlib", "subprocess", "threading", "socket", "time", "random", "tempfile", "shutil", "signal"}
    for name in (name for name in SOURCES if is_in(name, DECISIONS)):
        assert not {imported.split(".")[0] for imported in imports_of(SOURCES[name])} & outside, name
        assert not house_imports_of(name) & {"files", "clock", "runtime.devices", "runtime.log"}, name


@pytest.mark.parametrize(("side", "other"), [("coordinator", "block"), ("block", "coordinator")])
def test_coordinator_and_block_know_each_other_by_messages_only(side, other):
    known = [imported for name in SOURCES if is_in(name, [side]) for imported in house_imports_of(name)]
    assert not [imported for imported in known if is_in(imported, [other])]
    assert "comm.messages" in known


def test_third_party_packages_come_in_by_their_doors():
    for name in SOURCES:
        assert not [used for used in foreign_packages_of(name) if not is_in(name, DOORS.get(used, []))], name


def test_only_run_names_the_adapters_that_have_a_twin():
    named = [
        f"{name} names {other}"
        for name in OF_THE_HOUSE
        for other in house_imports_of(name)
        if is_in(other, NAMED_BY_RUN)
        and not is_in(name, ["run", "cli", "api", "compat", "allreduce", "controller", "doctor"])
        and other not in OWN_PACKAGE.get(name, [])
    ]
    assert not named


def test_the_testing_package_is_used_by_tests_alone_and_imports_no_entry_point():
    for name in SOURCES:
        forbidden = ["cli", "api"] if is_in(name, ["testing"]) else ["testing"]
        assert not [other for other in house_imports_of(name) if is_in(other, forbidden)], name


def test_nothing_is_pickled():
    picklers = {"pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}
    assert not [name for name, path in SOURCES.items() if {i.split(".")[0] for i in imports_of(path)} & picklers]


def test_only_cli_and_reports_print():
    prints = [
        f"{name} line {node.lineno}"
        for name, path in SOURCES.items()
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
        # Its standard output is its protocol.
        if not is_in(name, ["cli", "api", "compat", "run.start.console", "run.rank.roles", "reporting", "search.serve"])
    ]
    assert not prints


@pytest.mark.parametrize("path", sorted((REPOSITORY / "drivers").glob("*.py")), ids=lambda path: path.stem)
def test_drivers_import_the_entry_points_and_nothing_else(path):
    ours = {imported for imported in imports_of(path) if imported.startswith("nnlo_opt")}
    assert len(ours) == 1
    assert next(iter(ours)).startswith("nnlo_opt.cli.main.")


def modules_after(statement: str) -> set[str]:
    """Top-level packages in a fresh interpreter after `statement`."""
    program = f"import sys, json\n{statement}\nprint(json.dumps(sorted(sys.modules)))"
    done = python(program, cwd=REPOSITORY).expect(0)
    return {name.split(".")[0] for name in json.loads(done.out.splitlines()[-1])}


@pytest.mark.parametrize(
    "statement",
    [
        "import nnlo_opt.run.start.search, nnlo_opt.block.master.master",
        "import nnlo_opt.run.start.training, nnlo_opt.run.rank.roles, nnlo_opt.cli.main",
        "import nnlo_opt.space",
        "import nnlo_opt.reporting.follow",
        "import nnlo_opt.export.mirror",
    ],
)
def test_what_the_coordinator_the_master_and_the_reporter_need_is_light(statement):
    assert not modules_after(statement) & set(HEAVY)


@pytest.mark.parametrize(
    "statement",
    [
        "import nnlo_opt.coordinator.coordinator, nnlo_opt.block.master.master, nnlo_opt.block.worker.worker",
        "import nnlo_opt.cli.getdata, nnlo_opt.cli.buildmodel, nnlo_opt.cli.tool",
        "import nnlo_opt.search.serve",
        "import nnlo_opt.cli.simulate",
    ],
)
def test_what_needs_no_ranks_imports_no_mpi(statement):
    assert "mpi4py" not in modules_after(statement)
