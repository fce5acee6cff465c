"""Optimizers and schedulers of torch in a team, against a plain loop of torch from the same weights."""

from dataclasses import replace

import numpy as np
import pytest

from nnlo_opt.core.base.spelling import spelled
from nnlo_opt.core.comm import messages as msg
from nnlo_opt.core.data.folds import single_fold
from nnlo_opt.core.training.options import TrainingOptions
from nnlo_opt.engine.models.losses import LossTerm
from nnlo_opt.engine.models.own_optimizer import Instead, Own, OwnOptimizer
from nnlo_opt.engine.models.torch import framework
from tests.helpers.adapters import torch
from tests.helpers.linear_teams import central_of, finish
from tests.helpers.loopback_team import LoneTeam, LoopbackTeam, tasks_from
from tests.helpers.memory_source import ArraySource
from tests.helpers.refusals import refusal

pytestmark = pytest.mark.needs("torch")

N_TRAIN, BATCH, EPOCHS = 26, 4, 4
TERMS = [LossTerm("output_0", "mean_squared_error")]
KNOWN = ("loss", "val_loss")
rng = np.random.default_rng(0)
X = rng.normal(size=(N_TRAIN + 6, 3)).astype(np.float32)
Y = (X @ [[1.0], [-2.0], [3.0]] + 0.1 * rng.normal(size=(len(X), 1))).astype(np.float32)


def net():
    framework.set_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))


def adam_w(module):
    slow, fast = [module[0].weight, module[0].bias], [*module[2].parameters()]
    return torch.optim.AdamW(
        [{"params": slow, "weight_decay": 0.5}, {"params": fast, "lr": 0.1}], lr=0.05, amsgrad=True
    )


def signs(module):
    """A user's optimizer, which replaces the tensors of parameters and counts in an attribute."""

    class Signs(torch.optim.Optimizer):
        def __init__(self, parameters):
            super().__init__(parameters, {"lr": 0.02})
            self.n = 0

        def step(self, closure=None):
            self.n += 1
            for group in self.param_groups:
                for p in group["params"]:
                    p.data = p.data - group["lr"] / (1 + self.n % 3) * torch.tanh(p.grad)

    return Signs(module.parameters())


def stepped(optimizer):
    return torch.optim.lr_scheduler.MultiStepLR(optimizer, [1, 3], 0.1)


def plateau(optimizer):
    return torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, threshold=0.9, factor=0.3)


def one_cycle(optimizer):
    """Rates and momenta of each group; its 28 steps are those of the training."""
    return torch.optim.lr_scheduler.OneCycleLR(
        optimizer, [0.02, 0.2][: len(optimizer.param_groups)], total_steps=EPOCHS * 7
    )


def warmed_up(optimizer):
    kinds = torch.optim.lr_scheduler
    parts = [kinds.LinearLR(optimizer, 0.01, total_iters=9), kinds.MultiStepLR(optimizer, [2, 8], 0.3)]
    return {"scheduler": kinds.SequentialLR(optimizer, parts, milestones=[9]), "interval": "step"}


def looped(get_optimizer, get_scheduler):
    """Weights that a plain loop leaves."""
    module = net()
    optimizer = get_optimizer(module)
    scheduler, by_step = get_scheduler and get_scheduler(optimizer), get_scheduler in (one_cycle, warmed_up)
    scheduler = scheduler["scheduler"] if isinstance(scheduler, dict) else scheduler
    x, y = torch.from_numpy(X), torch.from_numpy(Y)
    loss_of = torch.nn.functional.mse_loss
    for _ in range(EPOCHS):
        for start in range(0, N_TRAIN, BATCH):
            part = slice(start, min(start + BATCH, N_TRAIN))
            optimizer.zero_grad()
            loss_of(module(x[part]), y[part]).backward()
            optimizer.step()
            if by_step:
                scheduler.step()
        if get_scheduler is plateau:
            scheduler.step(loss_of(module(x[N_TRAIN:]), y[N_TRAIN:]).item())
        elif get_scheduler is not None and not by_step:
            scheduler.step()
    return torch.cat([p.detach().reshape(-1) for p in module.parameters()]).numpy()


def team_of(directory, get_optimizer, get_scheduler=None, **options):
    def own_of(module):
        return framework.own_of(module, lambda: get_optimizer(module), get_scheduler, "model.py")

    words = own_of(net()).words
    options = TrainingOptions(batch=BATCH, epochs=EPOCHS, shuffle=False, **options).with_steps({"own": words})

    class Tasks:
        def __init__(self):
            def build(parameters, options, seed):
                return framework.adapter(net(), TERMS)

            folds = [single_fold(N_TRAIN, len(X) - N_TRAIN)]
            self._tasks = tasks_from(build, ArraySource(X, Y), folds, options)
            self.close = self._tasks.close

        def open(self, start):
            task = self._tasks.open(start)
            stepping = task.adapter.stepping(own_of(task.adapter.synced_model()), Instead())
            own = OwnOptimizer(task.adapter.n_weights, stepping, words)
            return task.replaced(options=replace(task.options, own=own))

    def scheduler(task):
        return framework.epoch_scheduler(lambda: get_optimizer(net()), get_scheduler, None, "model.py", KNOWN)

    makes = get_scheduler and not own_of(net()).schedule
    return LoneTeam(directory, options, Tasks, make_callbacks=scheduler if makes else None)


PAIRS = {
    "optimizer": (adam_w, None),
    "scheduler": (adam_w, stepped),
    "plateau": (adam_w, plateau),
    "of a user": (signs, stepped),
    "one cycle": (adam_w, one_cycle),
    "by step": (signs, warmed_up),
}


@pytest.mark.parametrize("options", [{}, {"mode": "allreduce"}, {"synchronous": True}], ids=str)
@pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS)
def test_a_team_leaves_the_weights_of_a_plain_loop_killed_or_not(tmp_path, monkeypatch, pair, options):
    monkeypatch.setattr(LoopbackTeam, "shares", True)
    left = looped(*pair)
    finish(whole := team_of(tmp_path / "whole", *pair, **options))
    np.testing.assert_allclose(central_of(whole), left, rtol=1e-4, atol=1e-5)
    killed = team_of(tmp_path / "parts", *pair, **options)
    killed.run_fold()
    killed.steps(40)
    killed.order(msg.PreemptFold(assignment=0))
    killed.settle()
    finish(again := team_of(tmp_path / "parts", *pair, **options))
    assert np.array_equal(central_of(again), central_of(whole))
    assert again.reported(msg.FoldStarted)[0].epoch > 0, "it has begun anew"


def test_workers_of_easgd_step_with_optimizers_of_their_own(tmp_path):
    finish(whole := team_of(tmp_path / "whole", adam_w, stepped, mode="easgd"))
    killed = team_of(tmp_path / "parts", adam_w, stepped, mode="easgd")
    killed.run_fold()
    killed.steps(40)
    finish(again := team_of(tmp_path / "parts", adam_w, stepped, mode="easgd"))
    assert np.array_equal(central_of(again), central_of(whole))
    assert again.reported(msg.FoldStarted)[0].epoch > 0, "it has begun anew"


def test_what_cannot_act_is_refused_by_name():
    def scheduler(get_scheduler, monitor=None):
        return framework.epoch_scheduler(lambda: adam_w(net()), get_scheduler, monitor, "model.py", KNOWN)

    schedulers = torch.optim.lr_scheduler
    for get_scheduler, says in (
        (lambda o: {"scheduler": plateau(o), "interval": "step"}, ["ReduceLROnPlateau", "interval='step'"]),
        (lambda o: {"scheduler": stepped(o), "interval": "batch"}, ["interval='batch' with MultiStepLR of model.py"]),
        (lambda o: {"scheduler": stepped(o), "every": 2}, ["'every' with MultiStepLR"]),
        (lambda o: {"scheduler": plateau(o), "monitor": "auc"}, ["ReduceLROnPlateau", "'auc'"]),
        (lambda o: schedulers.ReduceLROnPlateau(o, "max"), ["None for mode='max'", "`get_scheduler.monitor"]),
        (lambda o: None, ["`get_scheduler` of model.py"]),
    ):
        refusal(scheduler, get_scheduler, says=says)
    assert str(scheduler(plateau, "loss")) == "ReduceLROnPlateau"
    without = framework.epoch_scheduler, None, one_cycle, None, "model.py", KNOWN
    refusal(*without, says=["OneCycleLR of model.py with another one", "`--lr-schedule one-cycle`"])
    refusal(framework.own_of, net(), lambda: "adam", None, "model.py", says=["`get_optimizer` of model.py", "str"])
    adapter = framework.adapter(net(), TERMS)

    def steps(optimizer, rate=None, make_scheduler=None):
        own = Own(optimizer, "", make_scheduler=make_scheduler)
        return adapter.stepping(own, Instead(learning_rate=rate))

    refusal(steps, torch.optim.SGD(net().parameters()), says=["shape (8, 3) of SGD that the module does not have"])
    grouped = adam_w(adapter.synced_model())
    refusal(steps, grouped, 0.5, says=["`--learning-rate`", "has one for all parameters. Received: 0.5 with AdamW"])
    for instead in ({"weight_decay": 0.5}, {"no_decay": "bias"}):
        asked = adapter.stepping, Own(grouped, ""), Instead(**instead)
        refusal(*asked, says=[f"`{spelled(next(iter(instead)))}`", "with AdamW"])
    plain = torch.optim.SGD(adapter.synced_model().parameters(), lr=0.1)
    cyclic = lambda o: schedulers.CyclicLR(o, 0.1, 0.2)  # noqa: E731
    refusal(steps, plain, 0.5, cyclic, says=["`--learning-rate`", "0.5 with CyclicLR"])
    own = signs(adapter.synced_model())
    own.source = iter([])
    refusal(steps, own, says=["`source` of Signs, list_iterator"])


def test_options_replace_learning_rate_and_weight_decay_of_all_groups():
    adapter = framework.adapter(net(), TERMS)
    optimizer = torch.optim.AdamW(adapter.synced_model().parameters())
    adapter.stepping(Own(optimizer, ""), Instead(weight_decay=0.5, learning_rate=0.25))
    assert [(group["lr"], group["weight_decay"]) for group in optimizer.param_groups] == [(0.25, 0.5)]


def test_schedulers_that_count_steps_are_known_by_their_class_or_by_an_interval():
    kinds = torch.optim.lr_scheduler
    transformers = pytest.importorskip("transformers")
    module = net()
    for make, length in (
        (one_cycle, 28),
        (warmed_up, 17),
        (lambda o: {"scheduler": kinds.CosineAnnealingLR(o, 20), "interval": "step"}, 20),
        (lambda o: {"scheduler": kinds.ExponentialLR(o, 0.9), "interval": "step"}, None),
        (lambda o: transformers.get_linear_schedule_with_warmup(o, 3, 30), 30),
        (stepped, 0),
        (lambda o: {"scheduler": one_cycle(o), "interval": "epoch"}, 0),
    ):
        own = framework.own_of(module, lambda: adam_w(module), make, "model.py")
        assert (own.n_scheduled, bool(own.schedule)) == ((length, True) if length != 0 else (None, False))


def test_a_cycle_keeps_its_last_learning_rate():
    adapter = framework.adapter(net(), TERMS)
    optimizer = torch.optim.SGD(adapter.synced_model().parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.OneCycleLR
    own = Own(optimizer, "", make_scheduler=lambda o: scheduler(o, 0.5, total_steps=4, final_div_factor=10.0))
    steps, zeros = adapter.stepping(own, Instead()), np.zeros(adapter.n_weights, np.float32)
    for _ in range(6):
        steps.step(zeros.copy(), zeros)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.002)


def test_parameters_that_an_optimizer_leaves_out_are_said():
    def remark(get_optimizer):
        return framework.own_of(module, lambda: get_optimizer(module), None, "model.py").remark

    module = net()
    assert remark(adam_w) == ""
    module[0].bias.requires_grad = False
    said = remark(lambda m: torch.optim.SGD(m[2].parameters()))
    assert said == "`get_optimizer` leaves out 1 of 3 trainable parameters, which stay as they are: 0.weight."
