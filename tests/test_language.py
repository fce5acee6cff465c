"""Countable part of the plain English: openings of docstrings, foreign words, sizes of modules."""

import ast
import re
from pathlib import Path

import pytest

from tests.helpers.sources import ROOT, SOURCES, house_imports_of, name_of, tree_of

MODULES = [*SOURCES.values()]

#: the package has fewer modules; most lines of a module
MAX_MODULES, MAX_LINES = 303, 600
#: a module of fewer lines belongs into its importer, if there is one importer only
MIN_LINES = 60
#: folders of adapters and of one algorithm a module, in which small modules may stay
MAY_BE_SMALL = {"space", "search", "trials", "comm", "models", "data", "allreduce", "export"}

#: words with which no docstring begins: it begins with a verb, or with the noun that it defines
OPENINGS = ("What", "Whether", "Who", "How", "Where", "Which", "Of")
#: words outside of the field, which name no module, class or function
FOREIGN_WORDS = {"told", "mourn", "vigil", "desk", "workplace", "cards", "wishes", "roster", "stock", "kin", "word"}
#: words that name no module or class: a worker of several ranks is a worker group
FOREIGN_NOUNS = FOREIGN_WORDS | {"ring"}
#: phrases outside of the field, which no docstring and no comment of a field contains
FOREIGN_PHRASES = re.compile(
    r"\b(told|gone on with|goes on with|go on with|such an? |the others|that of|those of|of which|mourn|vigil)\b"
)


#: "where" for "if" in docstrings and comments: it begins a sentence, follows a result, or leads to what is not there
WHERE_FOR_IF = re.compile(
    r"(^|[.;:(] )Where\b"
    r"|\b(None|True|False|\w*Error|only|except|out|else) where\b"
    r"|\b[Ww]here (there|enough|possible|needed|given|known)\b"
    r"|\b[Ww]here [^.,;:]{1,40} (not|no|none|nothing|lacks?|lacking|cannot)\b"
)

#: most letters of the name of a test, and words that it does without
MAX_NAME = 90
OBSCURE = re.compile(r"(_|\b)(who|whom|such|nobody|somebody|anew|(go|goes|going|gone|went)_on|the_others)(_|\b)")


def folder_of(path: Path) -> str:
    """Return the folder of a module; "" for a module of the root."""
    parts = path.relative_to(ROOT).parts
    return parts[0] if len(parts) > 1 else ""


def definitions(path: Path) -> list[ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef]:
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    return [node for node in ast.walk(tree_of(path)) if isinstance(node, kinds)]


def docstrings(path: Path) -> list[tuple[int, str]]:
    """Return the docstrings of a module, each with a line near it."""
    found = ((getattr(node, "lineno", 1), ast.get_docstring(node)) for node in definitions(path))
    return [(line, text) for line, text in found if text]


def words_of(name: str) -> list[str]:
    """`RingBatches` -> ring, batches; `_waits_for_word` -> waits, for, word."""
    return [word.lower() for word in re.findall(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])", name)]


# ---------------------------------------------------------------- one rule a function: breaches of a module


def openings(path: Path) -> list[str]:
    return [f"line {line}: {text.splitlines()[0]}" for line, text in docstrings(path) if text.split()[0] in OPENINGS]


def joined_concepts(path: Path) -> list[str]:
    """Return the first line of a module that lists concepts, by "and" or by commas."""
    first = (ast.get_docstring(tree_of(path)) or "").partition("\n")[0]
    return [first] if " and " in first or first.count(", ") > 2 else []


def names(path: Path) -> list[str]:
    functions = [node.name for node in definitions(path) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    nouns = [path.stem, *(node.name for node in definitions(path) if isinstance(node, ast.ClassDef))]
    return [
        name
        for known, foreign in ((functions, FOREIGN_WORDS), (nouns, FOREIGN_NOUNS))
        for name in known
        if foreign & set(words_of(name))
    ]


def prose(path: Path, mark: str) -> list[tuple[int, str]]:
    """Return docstrings, and comments that begin with `mark`, each on one line with its line number."""
    text = path.read_text()
    blocks = re.finditer(rf"(?:^ *{mark}.*\n)+|(?<=  ){mark}.*", text, re.MULTILINE)
    comments = [(text.count("\n", 0, at.start()) + 1, re.sub("^ *#:?", "", at[0], flags=re.M)) for at in blocks]
    return [(line, " ".join(words.split())) for line, words in (*docstrings(path), *comments)]


def phrases(path: Path) -> list[str]:
    return [f"line {line}: {found[0]}" for line, text in prose(path, "#:") if (found := FOREIGN_PHRASES.search(text))]


def conditions(path: Path) -> list[str]:
    texts = prose(path, "#")
    return [f"line {line}: {found[0]}" for line, text in texts if (found := WHERE_FOR_IF.search(text))]


def long_modules(path: Path) -> list[str]:
    n_lines = len(path.read_text().splitlines())
    return [f"{n_lines} lines"] if n_lines > MAX_LINES else []


def small_modules(path: Path) -> list[str]:
    """Return a module that belongs into the only module which imports it."""
    n_lines = len(path.read_text().splitlines())
    if path.stem == "__init__" or n_lines >= MIN_LINES or folder_of(path) in MAY_BE_SMALL:
        return []
    importers = [other for other in SOURCES if name_of(path) in house_imports_of(other)]
    return [f"{n_lines} lines, for {importers[0]} alone"] if len(importers) == 1 else []


RULES = {
    "openings": openings,
    "joined concepts": joined_concepts,
    "names": names,
    "phrases": phrases,
    "where for if": conditions,
    "long modules": long_modules,
    "small modules": small_modules,
}


@pytest.mark.parametrize("rule", RULES)
def test_no_module_breaks_the_rule(rule):
    assert not [f"{path.relative_to(ROOT)}: {breach}" for path in MODULES for breach in RULES[rule](path)]


def test_the_package_has_fewer_modules_than_its_limit():
    # built-in models are written as users write theirs, and are executed by their paths
    assert len([path for path in MODULES if path.stem != "__init__" and path.parent.name != "builtin"]) < MAX_MODULES


def test_names_of_tests_are_short_and_plain():
    found = [
        name for path in Path(__file__).parent.rglob("*.py") for name in re.findall(r"def (test_\w+)", path.read_text())
    ]
    assert not [name for name in found if len(name) > MAX_NAME or OBSCURE.search(name)]


def test_what_the_rules_find():
    """A check of the checks: each finds the breach that it is about."""
    assert words_of("RingBatches") == ["ring", "batches"]
    assert words_of("_waits_for_word") == ["waits", "for", "word"]
    assert FOREIGN_PHRASES.search("the weights, such as a master") is None
    assert FOREIGN_PHRASES.search("such a master")
    conditions = "Where labels are classes, they count.", "None where it is unknown", "where samples do not fit"
    assert all(map(WHERE_FOR_IF.search, conditions))
    places = "let tensors stay where they are", "Judge where ranks have run", "a region where all trials fail"
    assert not any(map(WHERE_FOR_IF.search, places))
    assert OBSCURE.search("test_it_goes_on")
    assert OBSCURE.search("test_a_worker_whose_rank_dies") is None
