"""What the README promises: only model and space modules are executed, nothing is unpickled, no shell runs."""

import ast
from functools import cache

from tests.helpers.sources import ROOT, SOURCES, tree_of

#: the ways of Python to execute code that is not ours: by name, by attribute
EXECUTES = {"eval", "exec", "compile", "__import__"}
EXECUTES_BY = {
    ("runpy", "run_path"),
    ("runpy", "run_module"),
    ("importlib", "import_module"),
    ("util", "spec_from_file_location"),
    ("loader", "exec_module"),
}
#: where modules of users are imported
USERS = {"engine/loading/modules.py", "engine/models/early.py", "ancestors/scripts/names.py"}
#: where a module of ours is imported by its name in a table of ours
OURS = {
    "__init__.py",
    "moved.py",
    "tools/export/exporter.py",
    "ancestors/scripts/classes.py",
    "engine/models/framework.py",
    "engine/models/keras/adapter.py",
    "engine/models/keras/framework.py",
    "engine/search/registry.py",
}
SHELLS = {("os", "system"), ("os", "popen"), ("subprocess", "getoutput"), ("subprocess", "getstatusoutput")}
#: readers that can execute what they read, and the argument that forbids it
SAFE_READERS = {
    ("np", "load"): ("allow_pickle", False),
    ("numpy", "load"): ("allow_pickle", False),
    ("torch", "load"): ("weights_only", True),
    ("saving", "deserialize_keras_object"): ("safe_mode", True),
}


@cache
def trees():
    """The code of every file of the package, which takes seconds to parse."""
    return {str(path.relative_to(ROOT)): tree_of(path) for path in SOURCES.values()}


@cache
def calls():
    """(file, line, name or (module, attribute), keyword arguments) of every call in the package."""
    found = []
    for file, tree in trees().items():
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call):
                continue
            keywords = {k.arg: k.value.value if isinstance(k.value, ast.Constant) else ... for k in node.keywords}
            match node.func:
                case ast.Name(id=name):
                    found.append((file, node.lineno, name, keywords))
                case ast.Attribute(value=ast.Name(id=owner) | ast.Attribute(attr=owner), attr=name):
                    found.append((file, node.lineno, (owner, name), keywords))
    return found


def test_code_of_users_is_executed_in_the_places_that_load_their_modules_only():
    found = {file for file, _, called, _ in calls() if called in EXECUTES or called in EXECUTES_BY}
    assert found == USERS | OURS


def test_no_shell_runs():
    assert not [call for call in calls() if call[2] in SHELLS or call[3].get("shell", False) is not False]


def test_what_is_read_cannot_execute_anything():
    readers = [
        (file, line, SAFE_READERS[called], words) for file, line, called, words in calls() if called in SAFE_READERS
    ]
    assert len(readers) > 3
    wrong = [f"{file} line {line}" for file, line, (word, value), words in readers if words.get(word) is not value]
    assert not wrong


def test_no_method_of_mpi4py_that_pickles_is_called():
    pickling = {"allgather", "allreduce", "alltoall", "bcast", "gather", "recv", "reduce", "scatter", "send"}
    assert not [call for call in calls() if call[2][0] in ("comm", "_comm") and call[2][1] in pickling]


def test_no_unsafe_yaml_or_pickling_of_arrays_or_frames():
    unsafe = {"read_pickle", "to_pickle", "unsafe_load", "enable_unsafe_deserialization"}
    assert not [call for call in calls() if (call[2] if isinstance(call[2], str) else call[2][1]) in unsafe]
    assert not [call for call in calls() if call[3].get("allow_pickle", False) is not False]
    assert not [call for call in calls() if call[3].get("weights_only", True) is not True]
    assert not [call for call in calls() if call[3].get("safe_mode", True) is not True]


def test_no_file_is_given_other_rights_than_the_umask_leaves():
    names = {"umask", "chmod", "fchmod"}
    assert not [call for call in calls() if isinstance(call[2], tuple) and call[2][1] in names]


def test_a_module_of_ours_is_imported_by_a_constant_or_from_a_table():
    for file in OURS:
        for node in ast.walk(trees()[file]):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "importlib.import_module":
                # A table of the module, in capitals: nothing that a user says.
                tables = [
                    name.id for name in ast.walk(node.args[0]) if isinstance(name, ast.Name) and name.id.isupper()
                ]
                is_constant = isinstance(node.args[0], ast.Constant)
                assert tables or is_constant or file == "__init__.py", f"{file} line {node.lineno}"


def test_every_file_is_made_with_rights_for_the_umask_to_take_from():
    made = [
        node
        for tree in trees().values()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and len(node.args) > 2 and ast.unparse(node.func) == "os.open"
    ]
    assert len(made) >= 2
    # Locks of a node's cache are the owner's alone.
    assert {node.args[2].value for node in made} == {0o666, 0o600}


def test_no_file_or_folder_has_a_fixed_name_in_a_public_folder():
    assert not [call for call in calls() if call[2] in {("tempfile", "mktemp"), ("tempfile", "gettempdir")}]
    fixed = [
        f"{file} line {node.lineno}"
        for file, tree in trees().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and str(node.value).startswith(("/tmp", "/var/tmp", "/dev/shm"))
    ]
    assert not fixed
