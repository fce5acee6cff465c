"""Keras on the backends that this process does not hold: the same tests in a process of their own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

CONFORMANCE, PRECISION, CALLBACKS, METRICS = (
    Path(__file__).parent / f"test_{name}.py"
    for name in ("keras_conformance", "keras_precision", "keras_callbacks", "metrics")
)

pytestmark = [pytest.mark.keras, pytest.mark.proof]


#: JAX compiles anew for every test: those that say most
FEWER = {
    CONFORMANCE: "SeveralInputs or dropout or kerass_own or masked or float16 or subclassed or saved",
    METRICS: "shards or outputs or mix or masked",
}


@pytest.mark.parametrize(
    ("backend", "selection"),
    [
        pytest.param("jax", FEWER, marks=pytest.mark.needs("jax")),
        pytest.param("torch", {}, marks=pytest.mark.needs("torch")),
    ],
)
@pytest.mark.parametrize("file", [CONFORMANCE, PRECISION, CALLBACKS, METRICS])
def test_conformance(backend, selection, file):
    command = [sys.executable, "-m", "pytest", str(file), "-q", "-k", selection.get(file, "test")]
    # Of the seconds that JAX takes for a test, most are for making fast what runs once.
    environment = os.environ | {"KERAS_BACKEND": backend, "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    assert "skipped" not in done.stdout.splitlines()[-1]
