import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nnlo_opt.core.base.errors import ProtocolError, TrialError
from nnlo_opt.core.block.master import instructions as ins
from nnlo_opt.core.block.master.state import FoldPlan, MasterState, Phase
from nnlo_opt.core.comm import messages as msg
from nnlo_opt.core.training.history import FoldHistory
from nnlo_opt.core.training.options import TrainingOptions
from nnlo_opt.core.trials.objectives import Comparison, Objective
from tests.helpers.effort import examples


def ready(n_train=10, has_validation=True):
    return msg.WorkerReady(
        assignment=0, n_weights=4, n_state=1, n_train=n_train, n_shard=n_train, has_validation=has_validation
    )


def push(n_samples=5, loss=1.0, **more):
    given = {"assignment": 0, "base_version": 0, "end_of_pass": False, **more}
    return msg.PushUpdate(n_samples=n_samples, sums={"loss": loss * n_samples}, **given)


def fence_reached(**states):
    return msg.FenceReached(assignment=0, position={}, states=states)


def validated(loss=1.0, n_samples=4, **states):
    return msg.Validated(assignment=0, n_samples=n_samples, sums={"loss": loss * n_samples}, states=states)


FAILED = msg.FoldFailed(assignment=0, reason="no", traceback="tb", world_rank=7, host="node")
MEASURED = msg.Measured(assignment=0, metrics={"auc": 0.75})
JUDGED = msg.Judged(assignment=0, figure_of_merit=1.0)
ORDER = msg.RunFold(assignment=0, trial=0, fold=0, attempt=1, point={})
STOPPED = ins.End(message=msg.FoldStopped(assignment=0))
OF_A_WORKER: list[msg.Message] = [ready(), push(), fence_reached(), validated(), MEASURED, JUDGED, FAILED]


def applied(worker: int, weight: float = 1.0) -> ins.ApplyUpdate:
    return ins.ApplyUpdate(worker=worker, weight=weight)


def fence(*workers: int) -> ins.SendFence:
    return ins.SendFence(workers=workers, epoch=1, checkpoint=True)


def plan(n_workers: int = 2, waits_for_decision: bool = False, pause_epochs: Any = (), **changes: Any) -> FoldPlan:
    """Return a plan; changes are of its own fields, or of the training options."""
    order = ORDER.replaced(waits_for_decision=waits_for_decision, pause_epochs=[*pause_epochs])
    own = {name: changes.pop(name) for name in FoldPlan.__struct_fields__ if name in changes}
    return FoldPlan(order=order, n_workers=n_workers, options=TrainingOptions(**{"epochs": 3, **changes}), **own)


def started(state: MasterState, **of_ready: Any) -> MasterState:
    for worker in state.workers:
        state.handle(worker, ready(**of_ready))
    return state


def fencing(**changes: Any) -> MasterState:
    """Both workers have been told to hand in their state."""
    state = started(MasterState(plan(**changes)))
    state.handle(1, push(n_samples=5, end_of_pass=True))
    state.handle(2, push(n_samples=5, end_of_pass=True))
    if not state.plan.options.waits:
        state.handle(1, push(base_version=state.version, n_samples=5))
    assert state.phase is Phase.FENCING
    return state


def validating(**changes: Any) -> MasterState:
    state = fencing(**changes)
    for worker in state.workers:
        state.handle(worker, fence_reached())
    assert state.phase is Phase.VALIDATING
    return state


def measuring(**changes: Any) -> MasterState:
    """Worker 1 was sent the merged states of both."""
    state = validating(**changes)
    assert state.handle(2, validated(auc=[0.1, 1.0], rest=[])) == []
    assert state.handle(1, validated(auc=[0.2, 2.0], rest=[])) == [
        ins.SendMeasure(states={"auc": [0.2 + 0.1, 3.0], "rest": []})
    ]
    assert state.phase is Phase.MEASURING
    return state


def one_epoch(state: MasterState, val_loss: float) -> list[ins.Instruction]:
    """Drive a state of one worker from the start of an epoch to its end."""
    out = state.handle(1, push(base_version=state.version, n_samples=state.n_train, end_of_pass=True))
    assert isinstance(out[-1], ins.SendFence)
    assert state.handle(1, fence_reached()) == [ins.HoldState(worker=1), ins.SendValidate()]
    return state.handle(1, validated(val_loss))


def run(state: MasterState, val_losses: list[float]) -> ins.FinishFold:
    """Drive a state of one worker to its end; `val_losses` has one value an epoch, and may have too many."""
    for val_loss in val_losses:
        out = one_epoch(state, val_loss)
        if isinstance(out[-1], ins.FinishFold):
            return out[-1]
    raise AssertionError("it has not finished")


def best(*objectives: Objective) -> Comparison:
    return Comparison(objectives=objectives, epoch="best")


def instructions_of(kind: type, out: list[ins.Instruction]) -> list[Any]:
    return [i for i in out if isinstance(i, kind)]


# ---------------------------------------------------------------- starting


def test_training_begins_when_the_last_worker_is_ready_and_not_before():
    state = MasterState(plan())
    assert state.handle(2, ready()) == []
    assert state.phase is Phase.STARTING
    assert state.handle(1, ready()) == [
        ins.Initialise(epoch=0),
        ins.SendWeights(workers=(1, 2), version=0, with_state=True),
    ]
    assert state.phase is Phase.TRAINING
    assert (state.n_train, state.has_validation) == (10, True)


# ---------------------------------------------------------------- training, asynchronous


def test_every_update_is_applied_at_once_and_answered_with_the_next_version():
    state = started(MasterState(plan()), n_train=100)
    for version in (1, 2, 3):
        assert state.handle(2, push(base_version=version - 1)) == [
            applied(2),
            ins.SendWeights(workers=(2,), version=version),
        ]
    assert state.handle(1, push(base_version=0)) == [applied(1), ins.SendWeights(workers=(1,), version=4)]
    assert state.staleness.histogram == {0: 3, 3: 1}


def test_an_epoch_is_full_when_the_workers_together_have_trained_all_samples():
    state = started(MasterState(plan()), n_train=10)
    state.handle(1, push(n_samples=5))
    state.handle(1, push(n_samples=4))
    assert state.phase is Phase.TRAINING
    assert state.handle(1, push(n_samples=1)) == [applied(1), fence(1)]
    assert state.phase is Phase.FENCING


def test_at_the_fence_the_update_on_its_way_still_counts_and_is_the_last():
    state = started(MasterState(plan()), n_train=10)
    state.handle(1, push(n_samples=10))
    assert state.handle(1, fence_reached()) == [ins.HoldState(worker=1)]
    assert state.handle(2, push(n_samples=3)) == [applied(2), fence(2)]
    assert (state.n_samples, state.version) == (13, 2)
    assert state.handle(2, fence_reached()) == [ins.HoldState(worker=2), ins.SendValidate()]


def test_samples_over_the_end_of_an_epoch_count_for_the_next():
    state = started(MasterState(plan(n_workers=1)), n_train=10)
    state.handle(1, push(n_samples=14))
    state.handle(1, fence_reached())
    state.handle(1, validated())
    assert state.phase is Phase.TRAINING
    state.handle(1, push(n_samples=5))
    assert state.phase is Phase.TRAINING
    state.handle(1, push(n_samples=1))
    assert state.phase is Phase.FENCING


def test_a_worker_that_overlaps_pushes_once_more_behind_the_fence_and_is_not_answered():
    state = started(MasterState(plan()), n_train=10)
    assert state.handle(1, push(n_samples=10)) == [applied(1), fence(1)]
    assert state.handle(1, push(n_samples=2)) == [applied(1)]
    assert state.handle(1, fence_reached()) == [ins.HoldState(worker=1)]
    with pytest.raises(ProtocolError, match="without having been sent weights"):
        state.handle(1, push())


def test_what_was_trained_but_not_pushed_counts_at_the_fence():
    state = started(MasterState(plan(n_workers=1)), n_train=10, has_validation=False)
    state.handle(1, push(n_samples=10, loss=1.0))
    left = msg.FenceReached(assignment=0, position={}, n_samples=10, sums={"loss": 30.0})
    (report,) = instructions_of(ins.ReportEpoch, state.handle(1, left))
    assert report.metrics == {"loss": 2.0}
    assert state.n_samples == 20


def test_an_update_that_is_too_old_is_dropped_counted_and_answered():
    state = started(MasterState(plan(staleness="drop:1")), n_train=100)
    for version in range(2):
        state.handle(2, push(base_version=version))
    assert state.handle(1, push(base_version=0)) == [ins.SendWeights(workers=(1,), version=2)]
    assert (state.staleness.n_dropped, state.version, state.n_samples) == (1, 2, 15)


def test_an_update_may_count_less_the_older_it_is():
    state = started(MasterState(plan(staleness="scale")), n_train=100)
    state.handle(2, push(base_version=0))
    assert state.handle(1, push(base_version=0))[0] == applied(1, weight=0.5)


def test_workers_that_train_together_are_halted_by_one_and_all_push_before_it_is_over():
    state = started(MasterState(plan(mode="allreduce")))
    assert state.stop() == [ins.SendHalt(worker=2)]
    assert state.stop() == []
    assert state.handle(2, push()) == []
    assert state.handle(1, push()) == [STOPPED]
    assert state.phase is Phase.OVER


# ---------------------------------------------------------------- training, synchronous


def test_a_round_is_applied_when_all_workers_have_pushed_in_the_order_of_the_workers():
    state = started(MasterState(plan(synchronous=True)))
    assert state.handle(2, push(n_samples=3)) == [ins.HoldUpdate(worker=2, n_samples=3)]
    assert state.handle(1, push(n_samples=4)) == [
        ins.HoldUpdate(worker=1, n_samples=4),
        ins.ApplyRound(workers=(1, 2)),
        ins.SendWeights(workers=(1, 2), version=1),
    ]
    assert state.staleness.histogram == {0: 2}


def test_a_worker_that_has_finished_waits_at_the_fence_for_other_workers():
    state = started(MasterState(plan(synchronous=True)))
    state.handle(1, push(end_of_pass=True))
    assert state.handle(2, push())[1:] == [ins.ApplyRound(workers=(1, 2)), ins.SendWeights(workers=(2,), version=1)]
    assert state.handle(2, push(base_version=1, end_of_pass=True))[1:] == [ins.ApplyRound(workers=(2,)), fence(1, 2)]


# ---------------------------------------------------------------- the fence


def test_what_a_worker_took_of_its_machine_goes_into_the_history_of_the_epoch():
    state = started(MasterState(plan(n_workers=1, epochs=2)), has_validation=False)
    for used in (50.0, 70.0):
        state.handle(1, push(n_samples=10))
        state.handle(1, msg.FenceReached(assignment=0, position={}, load={"cpu_percent": used}))
    assert state.history.workers == {1: {"loss": [1.0, 1.0], "cpu_percent": [50.0, 70.0]}}
    assert all("cpu_percent" not in metrics for metrics in state.history.epochs)


@pytest.mark.parametrize("synchronous", [False, True])
def test_validation_begins_when_all_workers_have_handed_in(synchronous):
    state = fencing(synchronous=synchronous)
    assert state.handle(2, fence_reached()) == [ins.HoldState(worker=2)]
    assert state.handle(1, fence_reached()) == [ins.HoldState(worker=1), ins.SendValidate()]


def test_without_validation_samples_the_epoch_ends_at_the_fence():
    state = started(MasterState(plan(n_workers=1, epochs=2)), has_validation=False)
    state.handle(1, push(n_samples=10))
    assert state.handle(1, fence_reached()) == [
        ins.HoldState(worker=1),
        ins.ReportEpoch(epoch=1, metrics={"loss": 1.0}, checkpoint=True),
        ins.SendWeights(workers=(1,), version=1, with_state=True),
    ]


@pytest.mark.parametrize("synchronous", [False, True])
def test_the_next_epoch_begins_with_weights_and_state_for_all(synchronous):
    state = validating(synchronous=synchronous)
    assert state.handle(2, validated(loss=2.0, n_samples=4)) == []
    out = state.handle(1, validated(loss=5.0, n_samples=8))
    assert out == [
        ins.ReportEpoch(epoch=1, metrics={"loss": 1.0, "val_loss": 4.0}, checkpoint=True),
        ins.SendWeights(workers=(1, 2), version=state.version, with_state=True),
    ]
    assert state.phase is Phase.TRAINING


def test_workers_without_validation_samples_change_no_mean():
    state = validating(n_workers=2)
    state.handle(1, validated(loss=3.0, n_samples=1))
    state.handle(2, msg.Validated(assignment=0, n_samples=0, sums={}))
    assert state.history.epochs[-1]["val_loss"] == 3.0


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_metric_that_is_not_finite_fails_the_fold(value):
    state = validating()
    state.handle(1, validated())
    (fail,) = state.handle(2, validated(loss=value))
    assert isinstance(fail.message, msg.FoldFailed)
    assert "val_loss" in fail.message.reason
    assert state.phase is Phase.OVER


# ---------------------------------------------------------------- the end


def test_a_fold_finishes_after_its_epochs_with_the_figures_of_the_last():
    state = started(MasterState(plan(n_workers=1)))
    finish = run(state, [3.0, 1.0, 2.0])
    assert (finish.n_epochs, finish.figure_of_merit, finish.restore_best) == (3, 2.0, False)
    assert finish.metrics == {"loss": 1.0, "val_loss": 2.0}
    assert finish.reason == "all epochs are done"
    assert state.phase is Phase.OVER


def test_early_stopping_ends_after_patience_and_takes_the_figures_of_the_best_epoch():
    state = started(MasterState(plan(n_workers=1, epochs=20, early_stopping="val_loss,<,2")))
    finish = run(state, [3.0, 1.0, 2.0, 1.5, 0.1])
    assert (finish.n_epochs, finish.figure_of_merit, finish.restore_best) == (4, 1.0, True)
    assert finish.kept_epoch == 2
    assert finish.reason == "val_loss has not improved since epoch 2 (`--early-stopping val_loss,<,2`)"


def test_smoothed_early_stopping_compares_means_of_patience_epochs():
    state = started(MasterState(plan(n_workers=1, epochs=20, early_stopping="val_loss,~<,2")))
    finish = run(state, [4.0, 2.0, 3.0, 1.0, 3.0, 2.5, 0.1])
    assert (finish.n_epochs, finish.figure_of_merit) == (6, 1.0)
    assert finish.reason.startswith(
        "the mean val_loss of 2 epochs is no better than that of as many epochs before (`--early"
    )


def test_the_best_epoch_is_kept_when_it_is_reached_and_only_then():
    state = started(MasterState(plan(n_workers=1, epochs=6, early_stopping="val_loss,<,9")))
    outs = [one_epoch(state, val_loss) for val_loss in (3.0, 2.0, 2.0, 4.0, 1.0, 1.5)]
    kept = [bool(instructions_of(ins.KeepBest, out)) for out in outs]
    assert kept == [True, True, False, False, True, False]
    # The copy has to be in the checkpoint of the same epoch.
    assert all(isinstance(out[0], ins.KeepBest) for out, keep in zip(outs, kept, strict=True) if keep)


def test_the_best_epoch_of_the_first_objective_counts_and_is_kept_where_that_is_asked_for():
    comparison = best(Objective("val_loss"), Objective("loss"))
    state = started(MasterState(plan(n_workers=1, epochs=4, comparison=comparison)))
    outs = [one_epoch(state, val_loss) for val_loss in (3.0, 1.0, 2.0, 1.5)]
    assert [bool(instructions_of(ins.KeepBest, out)) for out in outs] == [True, True, False, False]
    (finish,) = instructions_of(ins.FinishFold, outs[-1])
    assert (finish.metrics["val_loss"], finish.restore_best, finish.n_epochs) == (1.0, True, 4)


def test_the_best_epoch_of_an_objective_that_is_maximised_is_the_highest():
    state = started(MasterState(plan(n_workers=1, comparison=best(Objective("val_loss", "max")))))
    assert run(state, [3.0, 1.0, 2.0]).metrics["val_loss"] == 3.0


def test_an_objective_that_no_epoch_has_fails_the_trial_with_what_there_is():
    state = started(MasterState(plan(n_workers=1, comparison=best(Objective("val_auc")))))
    with pytest.raises(TrialError, match=r"`val_auc` is not measured .* loss, val_loss"):
        one_epoch(state, 1.0)


def judging(**changes: Any) -> tuple[MasterState, list[ins.Instruction]]:
    """All is trained, and worker 1 was asked for the user's figure of merit."""
    state = started(MasterState(plan(n_workers=1, epochs=2, comparison=Comparison(function="f"), **changes)))
    one_epoch(state, 3.0)
    return state, one_epoch(state, 2.0)


def test_a_figure_of_merit_of_the_user_s_is_asked_of_worker_1_when_all_is_trained():
    state, out = judging()
    assert out[-1] == ins.SendJudge(epoch=2, metrics={"loss": 1.0, "val_loss": 2.0})
    assert state.phase is Phase.JUDGING
    (finish,) = state.handle(1, msg.Judged(assignment=0, figure_of_merit=42.0))
    assert (finish.figure_of_merit, finish.n_epochs) == (42.0, 2)
    assert state.phase is Phase.OVER


def test_a_fold_can_be_stopped_while_it_is_judged():
    state, _ = judging()
    assert state.stop() == [STOPPED]


def test_nothing_is_kept_without_early_stopping():
    state = started(MasterState(plan(n_workers=1)))
    assert not instructions_of(ins.KeepBest, one_epoch(state, 1.0))


def test_the_target_metric_ends_the_fold_as_soon_as_it_is_passed():
    state = started(MasterState(plan(n_workers=1, epochs=20, target_metric="val_loss,<,0.5")))
    finish = run(state, [1.0, 0.5, 0.4, 0.1])
    assert (finish.n_epochs, finish.figure_of_merit) == (3, 0.4)
    assert "target" in finish.reason


def test_states_are_merged_and_finished_once_by_worker_1():
    state = measuring(target_metric="val_auc,>,0.7")
    check_refused_unchanged(state, 2, MEASURED)
    *_, report, finish = state.handle(1, MEASURED)
    assert report.metrics == finish.metrics == {"loss": 1.0, "val_loss": 1.0, "val_auc": 0.75}
    assert "val_auc is past its target" in finish.reason


def test_states_of_training_samples_need_no_validation():
    state = started(MasterState(plan(n_workers=1, epochs=1)), has_validation=False)
    state.handle(1, push(n_samples=state.n_train, end_of_pass=True))
    *_, asked = state.handle(1, fence_reached(auc=[1.0, 2.0]))
    assert asked == ins.SendMeasure(states={}, training={"auc": [1.0, 2.0]})
    *_, report, finish = state.handle(1, msg.Measured(assignment=0, metrics={}, training={"auc": 0.75}))
    assert report.metrics == finish.metrics == {"loss": 1.0, "auc": 0.75}


def test_a_worker_without_validation_samples_has_no_states():
    state = validating()
    state.handle(2, msg.Validated(assignment=0, n_samples=0, sums={}))
    assert state.handle(1, validated(auc=[0.5])) == [ins.SendMeasure(states={"auc": [0.5]})]


def test_workers_that_die_while_metrics_are_computed_leave_the_epoch_to_be_validated_again():
    state = measuring()
    assert state.can_regroup
    state.regroup(1)
    assert state.history.validation_states() == {}
    assert not measuring(synchronous=True).can_regroup


# ---------------------------------------------------------------- failures and what is not listed


def states_in_every_phase() -> dict[str, MasterState]:
    over = MasterState(plan())
    over.stop()
    found = {"STARTING": MasterState(plan()), "OVER": over}
    for synchronous in (False, True):
        kind = "synchronous" if synchronous else "asynchronous"
        found[f"TRAINING {kind}"] = started(MasterState(plan(synchronous=synchronous)))
        found[f"FENCING {kind}"] = fencing(synchronous=synchronous)
        found[f"VALIDATING {kind}"] = validating(synchronous=synchronous)
        found[f"MEASURING {kind}"] = measuring(synchronous=synchronous)
    found["JUDGING"] = judging()[0]
    return found


def insides(state: MasterState) -> dict[str, Any]:
    """Everything a state knows, in a form that can be compared."""
    values = copy.deepcopy(vars(state))
    values["history"] = vars(values["history"])
    values["rounds"] = vars(values["rounds"])
    values["staleness"] = values["staleness"].histogram
    return values


@pytest.mark.parametrize("phase", [phase for phase in states_in_every_phase() if phase != "OVER"])
def test_a_worker_that_fails_ends_the_fold_in_every_phase(phase):
    state = states_in_every_phase()[phase]
    assert state.handle(2, FAILED) == [ins.End(message=FAILED)]
    assert state.phase is Phase.OVER


LISTED: dict[str, tuple[type[msg.Message], ...]] = {
    "STARTING": (msg.WorkerReady, msg.FoldFailed),
    "TRAINING": (msg.PushUpdate, msg.FoldFailed),
    "FENCING": (msg.PushUpdate, msg.FenceReached, msg.FoldFailed),
    "VALIDATING": (msg.Validated, msg.FoldFailed),
    "MEASURING": (msg.Measured, msg.FoldFailed),
    "JUDGING": (msg.Judged, msg.FoldFailed),
    "OVER": (),
}
UNLISTED = [
    pytest.param(phase, message, id=f"{phase} {type(message).__name__}")
    for phase in states_in_every_phase()
    for message in [*OF_A_WORKER, msg.EndFold(assignment=0), msg.Train(assignment=0, version=0)]
    if not isinstance(message, LISTED[phase.split()[0]])
]


def check_refused_unchanged(state: MasterState, worker: int, message: msg.Message) -> None:
    before = insides(state)
    with pytest.raises(ProtocolError):
        state.handle(worker, message)
    assert insides(state) == before


@pytest.mark.parametrize(("phase", "message"), UNLISTED)
def test_a_message_the_phase_does_not_list_raises_and_changes_nothing(phase, message):
    check_refused_unchanged(states_in_every_phase()[phase], 1, message)


def after(state: MasterState, *messages: tuple[int, msg.Message]) -> MasterState:
    """The state, once it has taken these messages of workers."""
    for worker, message in messages:
        state.handle(worker, message)
    return state


def in_rounds() -> MasterState:
    return started(MasterState(plan(synchronous=True)))


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (after(MasterState(plan()), (1, ready())), ready()),
        (after(in_rounds(), (1, push())), push()),
        (after(in_rounds(), (1, push(end_of_pass=True)), (2, push())), push(base_version=1)),
        (after(fencing(), (1, fence_reached())), fence_reached()),
        (after(fencing(), (1, fence_reached())), push()),
        (after(validating(), (1, validated())), validated()),
    ],
    ids=["ready", "push", "push after the last", "fence", "push at the fence", "validated"],
)
def test_an_answer_given_twice_raises_and_changes_nothing(state, message):
    check_refused_unchanged(state, 1, message)


@pytest.mark.parametrize("synchronous", [False, True])
@pytest.mark.parametrize(("worker", "update"), [(3, push()), (1, push(base_version=1))], ids=["worker", "version"])
def test_an_update_of_no_worker_or_from_the_future_raises_and_changes_nothing(synchronous, worker, update):
    check_refused_unchanged(started(MasterState(plan(synchronous=synchronous))), worker, update)


def test_a_worker_that_was_not_asked_for_its_state_may_not_hand_it_in():
    state = after(started(MasterState(plan()), n_train=10), (1, push(n_samples=10)))
    with pytest.raises(ProtocolError):
        state.handle(2, fence_reached())


# ---------------------------------------------------------------- going on from a checkpoint


def history_of(val_losses: list[float]) -> FoldHistory:
    state = started(MasterState(plan(n_workers=1, epochs=99)))
    for val_loss in val_losses:
        one_epoch(state, val_loss)
    return FoldHistory.from_json(state.history.to_json())


def test_a_resumed_fold_keeps_its_epoch_version_and_samples():
    state = MasterState(plan(n_workers=1, epochs=5), history_of([3.0, 2.0]), n_samples=20, version=2)
    assert state.handle(1, ready()) == [
        ins.Initialise(epoch=2),
        ins.SendWeights(workers=(1,), version=2, with_state=True),
    ]
    out = one_epoch(state, 1.0)
    assert instructions_of(ins.ReportEpoch, out)[0].epoch == 3
    assert (state.n_samples, state.version) == (30, 3)


@pytest.mark.parametrize(
    ("changes", "val_losses", "figure"),
    [
        ({"epochs": 3}, [3.0, 2.0, 2.5], 2.5),
        ({"epochs": 2}, [3.0, 2.0, 2.5], 2.5),
        ({"epochs": 9, "early_stopping": "val_loss,<,1"}, [3.0, 2.0, 2.5], 2.0),
        ({"epochs": 9, "target_metric": "val_loss,<,2.9"}, [3.0, 2.8], 2.8),
    ],
)
def test_a_checkpoint_of_the_last_epoch_finishes_at_once(changes, val_losses, figure):
    history = history_of(val_losses)
    state = MasterState(plan(n_workers=1, **changes), history, n_samples=30, version=3)
    initialise, finish = state.handle(1, ready())
    assert initialise == ins.Initialise(epoch=len(val_losses))
    assert isinstance(finish, ins.FinishFold)
    assert (finish.figure_of_merit, finish.n_epochs) == (figure, len(val_losses))
    assert state.phase is Phase.OVER


# ---------------------------------------------------------------- any interleaving


class Imitation:
    """Workers that answer what the state asks of them, as the real ones do, in an order of the test's choice."""

    def __init__(self, state: MasterState, shards: list[int], batch: int):
        self.state = state
        self.batch = batch
        self.shards = shards
        self.offsets = [0] * len(shards)
        #: worker -> what it will send next
        self.answers: dict[int, msg.Message] = {w: ready(n_train=sum(shards)) for w in range(1, len(shards) + 1)}
        self.trained = [0] * len(shards)
        self.finished: ins.FinishFold | None = None

    def deliver(self, worker: int) -> None:
        message = self.answers.pop(worker)
        for instruction in self.state.handle(worker, message):
            match instruction:
                case ins.SendWeights():
                    for w in instruction.workers:
                        self.answers[w] = self._train(w, instruction.version)
                case ins.SendFence():
                    for w in instruction.workers:
                        self.answers[w] = fence_reached()
                case ins.SendValidate():
                    for w in self.state.workers:
                        self.answers[w] = validated()
                case ins.FinishFold():
                    self.finished = instruction

    def _train(self, worker: int, version: int) -> msg.PushUpdate:
        i = worker - 1
        n = min(self.batch, self.shards[i] - self.offsets[i])
        self.offsets[i] = (self.offsets[i] + n) % self.shards[i]
        self.trained[i] += n
        return push(base_version=version, n_samples=n, end_of_pass=self.offsets[i] == 0)


SHARDS = st.lists(st.integers(1, 9), min_size=1, max_size=4)


@settings(max_examples=examples(60), deadline=None)
@given(shards=SHARDS, batch=st.integers(1, 5), epochs=st.integers(1, 3), synchronous=st.booleans(), data=st.data())
def test_every_interleaving_finishes_after_its_epochs_of_samples(shards, batch, epochs, synchronous, data):
    n_train = sum(shards)
    state = MasterState(plan(n_workers=len(shards), epochs=epochs, synchronous=synchronous))
    team = Imitation(state, shards, batch)
    while team.finished is None:
        assert team.answers, "everybody waits for somebody else"
        team.deliver(data.draw(st.sampled_from(sorted(team.answers))))
    assert not team.answers
    assert team.finished.n_epochs == epochs == len(state.history.epochs)
    assert state.n_samples == sum(team.trained)
    if synchronous:
        assert team.trained == [epochs * n for n in shards]
        assert state.staleness.max == 0
    else:
        assert state.n_samples >= epochs * n_train
        assert state.staleness.n_updates == state.version


# ---------------------------------------------------------------- the coordinator's word


def awaiting(**changes: Any) -> MasterState:
    state = started(MasterState(plan(n_workers=1, synchronous=True, waits_for_decision=True, **changes)))
    one_epoch(state, 1.0)
    assert state.phase is Phase.AWAITING
    return state


def test_after_each_epoch_but_the_last_the_word_is_awaited():
    state = started(MasterState(plan(n_workers=1, epochs=2, synchronous=True, waits_for_decision=True)))
    (report,) = one_epoch(state, 1.0)
    assert isinstance(report, ins.ReportEpoch)
    assert report.waits
    assert state.go_on() == [ins.SendWeights(workers=(1,), version=1, with_state=True)]
    last, finish = one_epoch(state, 1.0)
    assert isinstance(last, ins.ReportEpoch)
    assert not last.waits
    assert isinstance(finish, ins.FinishFold)


def test_a_fold_is_paused_or_stopped_while_it_waits():
    assert awaiting().pause() == [ins.End(message=msg.FoldPaused(assignment=0, epoch=1))]
    assert awaiting().stop() == [STOPPED]
    assert awaiting(mode="allreduce").stop() == [STOPPED]
    assert awaiting().handle(1, FAILED) == [ins.End(message=FAILED)]


def test_a_preemption_of_a_fold_that_waits_without_a_checkpoint_ends_at_the_next_fence():
    state = awaiting(checkpoint_interval=9)
    assert state.preempt() == [ins.SendWeights(workers=(1,), version=1, with_state=True)]
    assert state.handle(1, push(n_samples=10, end_of_pass=True, base_version=1))[-1].checkpoint
    assert awaiting().preempt() == [STOPPED]


def test_an_answer_that_was_not_asked_for_is_a_bug():
    for state in (started(MasterState(plan())), MasterState(plan())):
        for say in (state.go_on, state.pause):
            with pytest.raises(ProtocolError, match="answered a report"):
                say()


@pytest.mark.parametrize(
    ("changes", "due"),
    [({"pause_epochs": (1,)}, True), ({"epochs": 1}, True), ({"pause_epochs": (2,)}, False), ({}, False)],
)
def test_an_epoch_that_may_be_paused_or_is_the_last_has_a_checkpoint_whatever_the_interval(changes, due):
    state = started(MasterState(plan(n_workers=1, synchronous=True, checkpoint_interval=9, **changes)))
    fence = state.handle(1, push(n_samples=10, end_of_pass=True))[-1]
    state.handle(1, fence_reached())
    report = state.handle(1, validated())[0]
    assert isinstance(fence, ins.SendFence)
    assert isinstance(report, ins.ReportEpoch)
    assert (fence.checkpoint, report.checkpoint) == (due, due)


def test_a_fold_resumed_from_a_checkpoint_asks_again_about_its_epoch():
    done = awaiting()
    state = MasterState(done.plan, done.history, n_samples=done.n_samples, version=done.version)
    initialise, report = state.handle(1, ready())
    assert initialise == ins.Initialise(epoch=1)
    assert report == ins.ReportEpoch(epoch=1, metrics=done.history.epochs[0], checkpoint=False, waits=True)
    assert state.go_on() == [ins.SendWeights(workers=(1,), version=1, with_state=True)]
