"""A category that is a tuple is a tuple wherever a script sees it."""

import pytest

import nnlo_opt
from nnlo_opt import Categorical, Integer, Study, load_run
from nnlo_opt.engine.objective import forked

KERNELS = [(3, 3), [5, 5], (7, (1, 2))]
SPACE = {"kernel": Categorical(KERNELS), "n": Integer(1, 3)}
SETTINGS = {"num_iterations": 6, "hyper_opt": "random"}


@pytest.fixture(autouse=True)
def without_frameworks(monkeypatch):
    """Other tests may have imported one; what is forked here uses none."""
    monkeypatch.setattr(forked, "FRAMEWORKS", ())


def as_written(point):
    return any(repr(point["kernel"]) == repr(kernel) for kernel in KERNELS)


def kernels(trials):
    return [repr(trial.parameters["kernel"]) for trial in trials]


@pytest.mark.parametrize("n_parallel", [1, 2])
def test_objective_callback_constraint_result_frame_and_run_have_tuples(tmp_path, n_parallel):
    seen = []

    def objective(kernel, n):
        if not as_written({"kernel": kernel}):
            raise TypeError(kernel)
        return kernel[0] * n

    result = nnlo_opt.optimize(
        objective,
        SPACE,
        checkpoint=tmp_path / "run",
        n_parallel=n_parallel,
        feasible=as_written,
        callbacks=[lambda study, trial: seen.extend([trial, *study.result])],
        **SETTINGS,
    )
    assert [trial.state.value for trial in result] == ["complete"] * 6
    assert all(as_written(trial.parameters) for trial in [*seen, *result, result.best])
    assert as_written(result.best_parameters)
    assert repr(result.best_parameters) in repr(result)
    assert [*map(repr, result.to_dataframe()["p:kernel"])] == kernels(result)
    run = load_run(tmp_path / "run")
    assert kernels(run) == kernels(result)
    assert kernels([run.trial(0)]) == kernels(result)[:1]
    more = SETTINGS | {"num_iterations": 9}
    again = nnlo_opt.optimize(
        objective, SPACE, checkpoint=tmp_path / "run", feasible=as_written, opt_restore=True, **more
    )
    assert kernels(again)[:6] == kernels(result)
    assert "(3, 3)" in kernels(again)


def test_the_tables_of_a_run_are_as_before(tmp_path):
    nnlo_opt.optimize(
        lambda kernel, n: n, SPACE, checkpoint=tmp_path / "run", start_point={"kernel": (3, 3)}, **SETTINGS
    )
    assert '"[3, 3]"' in (tmp_path / "run" / "results.csv").read_text()


def test_a_study_hands_out_tuples_and_takes_them():
    with Study(SPACE, **SETTINGS) as study:
        study.enqueue({"kernel": (7, (1, 2)), "n": 2})
        trial = study.ask()
        assert trial.parameters == {"kernel": (7, (1, 2)), "n": 2}
        study.tell(trial, 1.0)
    assert study.result.best_parameters == trial.parameters


def test_a_frame_with_tuples_warms_a_search_up():
    first = nnlo_opt.optimize(lambda kernel, n: n, SPACE, **SETTINGS)
    second = nnlo_opt.optimize(lambda kernel, n: n, SPACE, warm_start=first.to_dataframe(), **SETTINGS)
    assert len(second.ledger.adopted) == 6
