"""Whole searches of an objective under real mpirun: fast, so all world sizes and failures are tried with them."""

import json
import shutil
from pathlib import Path

import pytest

from tests.helpers import launcher, objectives
from tests.helpers.effort import some_of
from tests.helpers.objective_runs import begin, rows, search, summary

pytestmark = pytest.mark.mpi


@pytest.mark.parametrize(
    ("n_ranks", "block_size"),
    some_of([(3, 1), (5, 2), (1, 2), (2, 2), (7, 3), (5, 3), (4, 2)]),
)
def test_every_world_size_searches(tmp_path, n_ranks, block_size):
    search(tmp_path, objectives.GOOD, n_ranks, "--block-size", str(block_size), "--num-iterations", "6")
    assert [row["state"] for row in rows(tmp_path)] == ["complete"] * 6
    assert summary(tmp_path)["complete"]
    assert "plotly.js v" in (tmp_path / "checkpoints/S/report.html").read_text(encoding="utf-8")


@pytest.mark.proof
def test_a_report_on_one_rank_is_in_the_journal_and_on_the_terminal_before_the_trial_ends(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    outcome = search(tmp_path, objectives.LIVE, 1, "--num-iterations", "2")
    assert [row["figure_of_merit"] for row in rows(tmp_path)] == ["1.0", "1.0"]
    assert "trial 1 epoch 2: figure of merit" in outcome.out
    table = outcome.out[outcome.out.index("\nTrials") : outcome.out.index("\nSearch complete")].splitlines()
    assert max(map(len, table)) <= 40


@pytest.mark.parametrize("n_ranks", some_of([4, 7]))
def test_a_raising_rank_fails_its_trial_only_and_nothing_hangs(tmp_path, n_ranks):
    options = ["--block-size", "3", "--num-iterations", "24", "--hyper-opt", "random"]
    search(tmp_path, objectives.RAISING, n_ranks, *options)
    for row in rows(tmp_path):
        assert (row["state"] == "failed") == (float(row["p:x"]) > 0.5), row
        if row["state"] == "failed":
            where = row["p:where"]
            assert ("raised last" if where == "last" else f"raised {where}") in row["reason"]


ONLY_FAILS = objectives.module("\n    return np.linalg.inv(np.zeros((2, 2)))\n").replace(
    "parameters, comm, report", "x"
)


@pytest.mark.proof
def test_a_search_that_only_fails_stops_with_the_line_of_the_user_and_can_be_resumed(tmp_path):
    options = ["--block-size", "1", "--num-iterations", "50", "--max-failures", "4"]
    for n_before, more in ((0, []), (4, ["--opt-restore"])):
        outcome = search(tmp_path, ONLY_FAILS, 3, *options, *more, code=1)
        assert "trials failed for the same reason, and none succeeded (`--max-failures`)" in outcome.out
        assert n_before + 4 <= len(rows(tmp_path)) <= n_before + 5 + n_before // 4
    reason = "LinAlgError: Singular matrix (`objective.py`, line 12); traceback in `logs/rank-0000"
    assert f"No trial succeeded. The first reason: {reason}" in outcome.err
    log = outcome.err.split("traceback in `")[1].split("`")[0]
    assert "line 12, in objective" in (tmp_path / "checkpoints/S" / log).read_text()


@pytest.mark.proof
def test_what_is_awaited_before_a_run_is_said(tmp_path):
    text = f"import time\ntime.sleep(3.5)\n{objectives.GOOD}"
    outcome = search(tmp_path, text, 2, "--num-iterations", "1")
    first, second, *_ = outcome.out.splitlines()
    assert first == "OptimizationDriver on 2 ranks: reading model and data."
    assert second == "Waiting: reading model and data, 3 s so far."


@pytest.mark.proof
def test_ranks_that_disagree_fail_the_trial_with_the_reason_and_nothing_hangs(tmp_path):
    search(tmp_path, objectives.MISUSED, 5, "--block-size", "2", "--num-iterations", "7", "--hyper-opt", "random")
    reasons = {row["p:how"]: row["reason"] for row in rows(tmp_path)}
    assert len(reasons) == 7
    for how, words in objectives.MISUSES.items():
        assert words in reasons[how] if words else reasons[how] == "", (how, reasons[how])


@pytest.mark.proof
def test_training_options_are_refused_with_an_objective(tmp_path):
    for options in (["--epochs", "5"], ["--optimizer", "sgd"], ["--features-name", "x"], ["--no-shuffle"]):
        outcome = search(tmp_path, objectives.GOOD, 1, *options, code=2)
        assert f"`{options[0]}`" in outcome.err


@pytest.mark.proof
def test_a_used_up_space_ends_the_search_complete_and_says_so(tmp_path):
    outcome = search(tmp_path, objectives.FINITE, 4, "--block-size", "1", "--num-iterations", "50")
    assert sorted(row["p:n"] for row in rows(tmp_path)) == ["1", "2", "3", "4", "5"]
    assert summary(tmp_path)["complete"]
    assert "no new point: all its 5 points" in outcome.out


@pytest.mark.proof
def test_the_direction_is_kept_and_values_are_stored_as_returned(tmp_path):
    search(tmp_path, objectives.FINITE, 2, "--direction", "max", "--num-iterations", "5")
    best = summary(tmp_path)["best"]
    assert best["figure_of_merit"] == 5.0
    assert best["parameters"] == {"n": 5}
    assert json.loads((tmp_path / "checkpoints/S/config.json").read_text())["direction"] == "max"


@pytest.mark.proof
def test_a_killed_search_keeps_its_outcome_constraints(tmp_path):
    model = objectives.module("""
    time.sleep(0.01)
    return {"value": parameters["x"], "size": 1 - parameters["x"]}
""")
    asked = ("--block-size", "1", "--num-iterations", "30", "--hyper-opt", "bayesian")
    bound = ("--outcome-constraint", "size<0.5")
    job = begin(tmp_path, model, 3, *asked, *bound)
    job.wait_for(tmp_path / "checkpoints/S", "TrialCompleted", 12)
    job.kill()
    refused = search(tmp_path, model, 3, *asked, "--opt-restore", code=2)
    assert "`--outcome-constraint` differs: it was size<0.5, now not given" in refused.err
    outcome = search(tmp_path, model, 3, *asked, *bound, "--opt-restore")
    launcher.check_search(tmp_path / "checkpoints/S", 30)
    assert all((row["feasible"] == "True") == (float(row["p:x"]) > 0.5) for row in rows(tmp_path))
    kept = [float(row["p:x"]) for row in rows(tmp_path) if row["feasible"] == "True"]
    assert 0.5 < summary(tmp_path)["best"]["figure_of_merit"] == min(kept) < 0.55
    assert f"Of 30 complete trials, {len(kept)} keep size<0.5." in outcome.out


@pytest.mark.proof
def test_a_target_ends_the_search(tmp_path):
    search(tmp_path, objectives.GOOD, 3, "--block-size", "1", "--num-iterations", "200", "--target-objective", "0.05")
    assert len(rows(tmp_path)) < 200
    assert "target" in summary(tmp_path)["reason"]


@pytest.mark.proof
def test_a_value_that_is_no_finite_number_fails_the_trial(tmp_path):
    search(tmp_path, objectives.NOT_A_NUMBER, 3, "--num-iterations", "12", "--hyper-opt", "random")
    for row in rows(tmp_path):
        x = float(row["p:x"])
        assert (row["state"] == "complete") == (x <= 0.25)
        assert ("'0.5', which is text: convert it by `float(...)`" in row["reason"]) == (0.25 < x <= 0.5)


@pytest.mark.proof
def test_no_rank_of_an_objective_loads_a_framework(tmp_path):
    search(tmp_path, objectives.FRAMEWORKS, 3, "--num-iterations", "2")
    assert [row["state"] for row in rows(tmp_path)] == ["complete"] * 2


@pytest.mark.proof
@pytest.mark.parametrize("pruner", [pytest.param("median", marks=pytest.mark.proof), "asha"])
def test_a_pruner_stops_an_objective_at_its_next_report(tmp_path, pruner):
    algorithm = "bayesian" if pruner == "asha" else "random"
    options = ["--block-size", "2", "--num-iterations", "16", "--hyper-opt", algorithm, "--pruner", pruner]
    outcome = search(tmp_path, objectives.CURVES, 5, *options)
    by_state = summary(tmp_path)["n_trials"]
    assert by_state["pruned"] >= 3
    assert by_state["complete"] >= 1
    assert by_state["pruned"] + by_state["complete"] == 16
    for row in rows(tmp_path):
        # A report is answered before it returns: no epoch is begun after the one that was judged.
        assert row["state"] == "pruned" or int(row["epochs"]) == 9
        assert (f" epoch {row['epochs']}" in row["reason"]) == (row["state"] == "pruned")
    assert ("cannot be paused" in outcome.out) == (pruner == "asha")


@pytest.mark.proof
def test_hyperband_must_know_the_epochs_of_an_objective(tmp_path):
    assert "--pruner-max-epochs" in search(tmp_path, objectives.CURVES, 2, "--pruner", "hyperband", code=2).err


@pytest.mark.proof
def test_folds_are_refused_with_an_objective(tmp_path):
    assert "--n-fold" in search(tmp_path, objectives.GOOD, 3, "--n-fold", "2", code=2).err


@pytest.mark.proof
def test_raising_the_number_of_iterations_extends_a_complete_run(tmp_path):
    search(tmp_path, objectives.GOOD, 3, "--num-iterations", "3")
    search(tmp_path, objectives.GOOD, 5, "--num-iterations", "5", "--opt-restore")
    assert len(rows(tmp_path)) == 5
    assert summary(tmp_path)["n_starts"] == 2


@pytest.mark.proof
def test_an_existing_run_is_not_touched(tmp_path):
    search(tmp_path, objectives.GOOD, 1, "--num-iterations", "2")
    before = (tmp_path / "checkpoints/S/journal.jsonl").read_bytes()
    outcome = search(tmp_path, objectives.GOOD, 1, "--num-iterations", "2", code=2)
    assert all(word in outcome.err for word in ("--opt-restore", "--checkpoint", "--overwrite"))
    assert (tmp_path / "checkpoints/S/journal.jsonl").read_bytes() == before


@pytest.mark.proof
def test_a_changed_search_is_refused_by_name(tmp_path):
    search(tmp_path, objectives.GOOD, 1, "--num-iterations", "2")
    changed = objectives.GOOD.replace("Real(0.0, 1.0", "Real(0.0, 2.0")
    outcome = search(tmp_path, changed, 1, "--num-iterations", "4", "--opt-restore", code=2)
    assert "`x`" in outcome.err
    outcome = search(tmp_path, objectives.GOOD + "# other\n", 1, "--num-iterations", "4", "--opt-restore", code=2)
    assert "model file" in outcome.err


@pytest.mark.proof
def test_runs_without_a_name_are_numbered_and_restored_by_model(tmp_path):
    (tmp_path / "objective.py").write_text(objectives.GOOD)
    command = ["OptimizationDriver", "--model", "objective.py", "--num-iterations", "2"]
    for _ in range(2):
        launcher.run(1, command, tmp_path)
    assert (tmp_path / "checkpoints/objective-002/summary.json").exists()
    # Both runs are complete: the newest one is extended, if that is what the command asks for.
    outcome = launcher.run(1, [*command, "--opt-restore"], tmp_path, code=2)
    assert "the newest run of objective, complete with 2 trials" in outcome.err
    launcher.run(1, [*command[:-1], "3", "--opt-restore"], tmp_path)
    launcher.check_search(tmp_path / "checkpoints/objective-002", 3)


@pytest.mark.proof
def test_other_ranks_write_to_their_own_log_only(tmp_path):
    text = objectives.GOOD.replace("    total =", "    print('hello from', comm.Get_rank())\n    total =")
    outcome = search(tmp_path, text, 3, "--num-iterations", "2")
    assert "hello" not in outcome.out
    logs = sorted((tmp_path / "checkpoints/S/logs").iterdir())
    assert [log.name for log in logs] == ["rank-00001.log", "rank-00002.log"]
    assert all("hello" in log.read_text() for log in logs)


@pytest.mark.proof
def test_conditions_and_a_constraint_hold_in_every_trial_and_a_restore(tmp_path):
    search(tmp_path, objectives.RICH, 5, "--num-iterations", "6", "--fix", "n=3")
    found = {(row["p:n"], row["p:optimizer"], row["p:momentum"]) for row in rows(tmp_path)}
    assert found == {("3", "sgd", "1"), ("3", "adam", "")}
    outcome = search(tmp_path, objectives.RICH, 5, "--opt-restore", code=2)
    assert "parameter `n` was Constant(3) and is now Integer(1, 9)" in outcome.err

    outcome = search(tmp_path, objectives.RICH, 5, "--num-iterations", "4", "--overwrite")
    (tmp_path / "space.py").write_text(objectives.RICH.replace("objective.parameter_range", "parameter_range"))
    search(tmp_path, objectives.RICH, 5, "--num-iterations", "50", "--opt-restore", "--search-space", "space.py")
    found = [(int(row["p:n"]), row["p:momentum"]) for row in rows(tmp_path)]
    assert len(found) == len(set(found)) == summary(tmp_path)["n_trials"]["complete"]
    assert set(found) == {(n, "") for n in range(1, 6)} | {(1, "1"), (2, "1"), (3, "1"), (1, "2")}

    (tmp_path / "space.py").write_text((tmp_path / "space.py").read_text().replace("LIMIT = 5", "LIMIT = 6"))
    outcome = search(tmp_path, objectives.RICH, 5, "--opt-restore", "--search-space", "space.py", code=2)
    assert "the search space differs: the constraint was `feasible` " in outcome.err


@pytest.mark.proof
def test_a_constraint_that_breaks_down_during_a_search_ends_it_with_its_sentence(tmp_path):
    broken = '    assert parameters["n"] != 4\n    return parameters["n"] + 2'
    text = objectives.RICH.replace('    return parameters["n"] + 2', broken)
    outcome = search(tmp_path, text, 3, "--hyper-opt", "random", "--num-iterations", "50", code=2)
    assert "`feasible` of " in outcome.err
    assert "AssertionError at {'n': 4" in outcome.err
    assert "Traceback" not in outcome.err


@pytest.mark.proof
def test_points_of_earlier_runs_are_left_out_and_a_space_without_any_other_is_refused(tmp_path):
    runs = []
    for said in (
        "all trials are done",
        "no new point: all its points have been tried, 3 here and the rest by earlier runs",
    ):
        options = [*(["--warm-start", *runs] if runs else ["--num-iterations", "2"])]
        assert said in search(tmp_path, objectives.FINITE, 1, *options).out
        runs.append(str((tmp_path / "checkpoints/S").rename(tmp_path / f"run-{len(runs)}")))
    tried = [row["p:n"] for run in runs for row in launcher.results_of(Path(run))]
    assert sorted(tried) == ["1", "2", "3", "4", "5"]
    refused = search(tmp_path, objectives.FINITE, 1, "--warm-start", *runs, "--start-point", "n=3", code=2)
    assert "`--warm-start` must leave points to try" in refused.err


@pytest.mark.proof
def test_a_search_that_a_limit_ends_before_its_first_trial_says_so(tmp_path):
    outcome = search(tmp_path, objectives.FINITE, 1, "--timeout", "0.000001", code=1)
    assert "`--timeout` of 1e-06 s is reached" in outcome.out
    assert "No trial succeeded. None has begun." in outcome.err


@pytest.mark.proof
def test_a_search_begins_with_an_earlier_run_and_continues_without_it(tmp_path):
    run = tmp_path / "checkpoints/S"
    search(tmp_path, objectives.GOOD, 1, "--num-iterations", "6", "--hyper-opt", "sobol")
    first = [row["p:x"] for row in rows(tmp_path)]
    run.rename(tmp_path / "earlier")
    warm = ["--warm-start", str(tmp_path / "earlier"), "--start-point", "x=0.77"]
    said = search(tmp_path, objectives.GOOD, 1, "--num-iterations", "5", *warm).out
    assert "6 of 6 complete trials are used" in said
    begun = [row["p:x"] for row in rows(tmp_path)]
    assert begun[0] == "0.77"
    assert not set(begun) & set(first)
    shutil.copytree(run, tmp_path / "begun")
    whole = []
    for _ in range(2):
        search(tmp_path, objectives.GOOD, 1, "--num-iterations", "7", *warm, "--opt-restore")
        whole.append([row["p:x"] for row in rows(tmp_path)])
        shutil.rmtree(run)
        shutil.copytree(tmp_path / "begun", run)
        shutil.rmtree(tmp_path / "earlier", ignore_errors=True)  # the second time it is gone
    assert whole[0] == whole[1]
    assert whole[0][:5] == begun
    refused = search(tmp_path, objectives.GOOD, 1, "--warm-start", "begun", "--opt-restore", code=2)
    assert "`--warm-start` differs" in refused.err


@pytest.mark.proof
def test_a_mirror_without_its_package_is_refused_before_there_is_a_run(tmp_path):
    (tmp_path / "objective.py").write_text(objectives.GOOD)
    program = (
        "import importlib.util as u, sys; found = u.find_spec\n"
        "u.find_spec = lambda name, *rest: None if name == 'optuna' else found(name, *rest)\n"
        "sys.argv = 'OptimizationDriver --model objective.py --checkpoint S --mirror optuna'.split()\n"
        "from nnlo_opt.cli.main import optimization_driver; optimization_driver()\n"
    )
    refused = launcher.run(1, ["python", "-c", program], tmp_path, code=2)
    sentence = "`--mirror optuna` needs the package optuna. It is not installed: `pip install 'nnlo_"
    assert refused.err.startswith(sentence)
    assert not (tmp_path / "checkpoints").exists()


@pytest.mark.proof
@pytest.mark.needs("optuna", "tensorboard")
def test_a_mirror_has_the_trials_of_both_starts_and_a_search_learns_from_it(tmp_path):
    from nnlo_opt.engine.search.optuna_reading import read_study

    mirrored = ["--block-size", "1", "--mirror", "optuna", "tensorboard", "--num-iterations"]
    for options in (["3"], ["6", "--opt-restore"]):
        assert "mirror" not in search(tmp_path, objectives.GOOD, 3, *mirrored, *options).err
    run = tmp_path / "checkpoints/S"
    study, observations = read_study(str(run / "optuna.log"), "--warm-start")
    assert [str(trial.params["x"]) for trial in study.trials] == [row["p:x"] for row in rows(tmp_path)]
    assert [str(trial.value) for trial in study.trials] == [row["figure_of_merit"] for row in rows(tmp_path)]
    assert {tuple(trial.intermediate_values) for trial in study.trials} == {(1, 2)}
    assert len([*run.glob("tensorboard/trial-*/*tfevents*")]) == len(observations) == 6
    shutil.move(run, tmp_path / "earlier")
    said = search(tmp_path, objectives.GOOD, 1, "--num-iterations", "1", "--warm-start", "earlier/optuna.log").out
    assert "6 of 6 complete trials are used" in said
