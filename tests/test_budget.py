"""Budget of code lines, which may only fall: a higher number needs a line of reason among the decisions."""

import ast
import io
import tokenize
from itertools import pairwise
from pathlib import Path

from tests.helpers.sources import ROOT, SOURCES, tree_of

REPOSITORY = ROOT.parent
DECISIONS = REPOSITORY / "docs/architecture/decisions.md"
#: most code lines of the package
MOST_LINES = 35_303
#: folder ("" is the root) -> its numbers, the oldest first: the last one holds
BUDGET: dict[str, tuple[int, ...]] = {
    "": (601, 608, 630, 633),
    "allreduce": (321,),
    "analysis": (292, 294),
    "api": (547, 778, 789, 793),
    "block": (2577, 2578),
    "cli": (2592, 2605, 2647, 2649, 2662, 2669),
    "comm": (1373, 1451, 1456, 1462),
    "compat": (2257, 2244, 2241),
    "controller": (362,),
    "coordinator": (1133, 1134, 1141, 1175),
    "data": (1818, 1813),
    "doctor": (407,),
    "export": (577, 582),
    "integrations": (150,),
    "launcher": (346,),
    "models": (3152, 3146),
    "objective": (343, 347, 565, 1380, 1381),
    "reporting": (1685, 1692, 1718, 1725),
    "run": (4294, 4415, 4476, 4478, 4495, 4509, 4516, 4519, 4523),
    "runtime": (1024, 1026),
    "search": (1983, 2098, 2112, 2180, 2189, 2208, 2225),
    "simulate": (501, 582),
    "space": (942, 953),
    "testing": (710, 701, 706),
    "training": (382, 404, 408),
    "trials": (1824, 1857, 1904),
    "update_rules": (898,),
}
NO_CODE = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)


def code_lines(path: Path) -> int:
    """Number of lines of a file without blank lines, comments and docstrings."""
    rows: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline):
        if token.type not in NO_CODE:
            rows.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(tree_of(path)):
        kinds = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
        if isinstance(node, kinds) and ast.get_docstring(node, clean=False) is not None:
            rows.difference_update(range(node.body[0].lineno, node.body[0].end_lineno + 1))
    return len(rows)


def lines_of_folders() -> dict[str, int]:
    lines: dict[str, int] = {}
    for path in SOURCES.values():
        parts = path.relative_to(ROOT).parts
        folder = parts[0] if len(parts) > 1 else ""
        lines[folder] = lines.get(folder, 0) + code_lines(path)
    return lines


def raises() -> list[str]:
    """Words of each number that is higher than the one before it, as the reason for it begins."""
    steps = [(folder, *step) for folder, numbers in BUDGET.items() for step in pairwise(numbers)]
    return [f"`{folder}/` {before:,} → {after:,}: " for folder, before, after in steps if after > before]


def test_no_folder_has_more_lines_than_its_number():
    lines = lines_of_folders()
    assert lines.keys() == BUDGET.keys()
    assert not {folder: n_lines for folder, n_lines in lines.items() if n_lines > BUDGET[folder][-1]}


def test_the_package_keeps_its_promise():
    assert sum(lines_of_folders().values()) <= MOST_LINES


def test_a_number_that_rises_has_its_reason():
    reasons = DECISIONS.read_text()
    assert not [words for words in raises() if words not in reasons]


def test_the_tests_are_no_longer_than_the_package():
    tests = [path for path in (REPOSITORY / "tests").rglob("*.py") if "__pycache__" not in path.parts]
    assert sum(map(code_lines, tests)) <= sum(lines_of_folders().values())
