"""Keras on the backends that this process does not hold: the same tests in a process of their own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

FILES = [f"test_{name}.py" for name in ("keras_conformance", "keras_precision", "keras_callbacks", "metrics")]

pytestmark = [pytest.mark.keras, pytest.mark.proof]


#: JAX compiles anew for every test: those of two files that say most
FEWER = (
    f"{FILES[0]} and (SeveralInputs or dropout or kerass_own or masked or float16 or subclassed or saved)"
    f" or {FILES[1]} or {FILES[2]} or {FILES[3]} and (shards or outputs or mix or masked)"
)


@pytest.mark.parametrize(
    ("backend", "selection"),
    [
        pytest.param("jax", FEWER, marks=pytest.mark.needs("jax")),
        pytest.param("torch", "test", marks=pytest.mark.needs("torch")),
    ],
)
def test_conformance(backend, selection):
    command = [
        sys.executable,
        "-m",
        "pytest",
        *(str(Path(__file__).parent / name) for name in FILES),
        "-q",
        "-k",
        selection,
    ]
    # Of the seconds that JAX takes for a test, most are for making fast what runs once.
    environment = os.environ | {"KERAS_BACKEND": backend, "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    assert "skipped" not in done.stdout.splitlines()[-1]
