"""Update rules with one fault each; without it they are the rule of `examples/example_update_rule.py`, or ours."""

import importlib.util
from typing import ClassVar

import numpy as np

from nnlo_opt.core.base.vectors import aligned_empty
from nnlo_opt.core.update_rules.allreduce import Allreduce, AllreduceWorker
from nnlo_opt.core.update_rules.downpour import Downpour, DownpourMaster, DownpourWorker
from nnlo_opt.core.update_rules.easgd import Easgd, EasgdWorker
from nnlo_opt.core.update_rules.rule import GroupHalf
from tests.helpers.pages import REPOSITORY

_SPEC = importlib.util.spec_from_file_location("example", REPOSITORY / "examples/example_update_rule.py")
example = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(example)
ErrorFeedback, MomentumMaster, FeedbackWorker = example.ErrorFeedback, example.MomentumMaster, example.FeedbackWorker

#: test of the suite, with its parameters in brackets -> rules that it finds, each with words of the assertion
BROKEN: dict[str, list[tuple[type, str]]] = {}


def fails(test, words):
    """Say which test of the suite finds the fault of a rule, with the words of its assertion."""

    def take_note(rule):
        BROKEN.setdefault(test, []).append((rule, words))
        return rule

    return take_note


def rule(test, words, base=ErrorFeedback, master=None, worker=None, **attributes):
    """Take note of a rule with halves of its own."""
    if master is not None:
        attributes["master_half"] = lambda self, options, n, n_workers: master(n, self.base_learning_rate(options))
    if worker is not None:
        attributes["worker_half"] = lambda self, options, n: worker(n)
    made = type(f"{(master or worker or base).__name__}Rule", (base,), attributes)
    return fails(test, words)(made)


# ---------------------------------------------------------------- vectors

VECTORS = "vectors_are_float32_and_as_long_as_the_model"


class DoubleMemory(MomentumMaster):
    def __init__(self, n_weights, rate):
        super().__init__(n_weights, rate)
        self.memory = {"velocity": np.zeros(n_weights)}


class DoubleError(FeedbackWorker):
    def __init__(self, n_weights):
        super().__init__(n_weights)
        self.memory = {"error": np.zeros(n_weights)}


class DoubleWeights(DownpourWorker):
    def __init__(self, n_weights):
        super().__init__(n_weights)
        self.weights = np.zeros(n_weights)


class DoubleUpdate(FeedbackWorker):
    def finish(self):
        return super().finish().astype(float)


rule(VECTORS, r"base_learning_rate", base_learning_rate=lambda self, options: 0.0)
rule(VECTORS, r"'vectors\[0\]': \('float64'", master=DoubleMemory)
rule(VECTORS, r"memory of half \d, 'error'", worker=DoubleError)
rule(VECTORS, r"`point` of a worker is .*float64", worker=DoubleWeights)
rule(VECTORS, r"`finish` of a worker is .*float64", worker=DoubleUpdate)


class Group(GroupHalf):
    def combine(self, updates):
        return np.mean([update for _, update in updates], axis=0, dtype=float)


rule("weights_stay_finite_and_the_loss_falls[tree]", "`combine` of a sub-master is .*float64",
     group_half=lambda self, options, n, n_workers: Group())  # fmt: skip


# ---------------------------------------------------------------- a training

FALLS = "weights_stay_finite_and_the_loss_falls[turns]"


class Uphill(MomentumMaster):
    def apply(self, central, update, weight):
        super().apply(central, -update, weight)


class Grows(MomentumMaster):
    def apply(self, central, update, weight):
        with np.errstate(all="ignore"):
            super().apply(central, update * np.float32(np.nan), weight)


class Silent(EasgdWorker):
    def step(self, n_samples):
        super().step(n_samples)


class Random(FeedbackWorker):
    def finish(self):
        return super().finish() * np.float32(np.random.default_rng().random())


class KeepsUpdate(MomentumMaster):
    last = None

    def apply(self, central, update, weight):
        super().apply(central, update if self.last is None else update + self.last, weight)
        self.last = update


class KeepsAnswer(FeedbackWorker):
    def adopt(self, kind, answer):
        self.weights = answer


class ChangesAnswer(FeedbackWorker):
    def adopt(self, kind, answer):
        answer *= 0.5
        super().adopt(kind, answer)


class OneMemory(MomentumMaster):
    velocity: ClassVar = {}

    def __init__(self, n_weights, rate):
        super().__init__(n_weights, rate)
        self.memory = {"velocity": self.velocity.setdefault(n_weights, self.memory["velocity"])}


rule(FALLS, "the loss after 5 epochs and before", master=Uphill)
rule(FALLS, "weights after 5 epochs", master=Grows)
rule(FALLS, "`step` has moved `point`, and returned None", base=Easgd,
     worker_half=lambda self, options, n: Silent(n, self.optimizer(options, n)))  # fmt: skip
rule("the_same_training_has_the_same_result[turns]", "the same training twice must be the same", worker=Random)
rule("nothing_that_is_passed_in_is_kept[turns]", "passed is NaN, must be the same", master=KeepsUpdate)
rule("nothing_that_is_passed_in_is_kept[turns]", "passed is NaN, must be the same", worker=KeepsAnswer)
rule("nothing_that_is_passed_in_is_kept[turns]", "the answer before and after `adopt`", worker=ChangesAnswer)
rule("trainings_by_one_rule_share_nothing[turns]", "another training by the same rule", master=OneMemory)


@fails("options_are_left_alone", "'beta_1': 0.25")
class ChangesOptions(Downpour):
    def master_half(self, options, n_weights, n_workers):
        options.optimizer_params["beta_1"] = 0.25
        return DownpourMaster(self.optimizer(options, n_weights))


# ---------------------------------------------------------------- learning rates, periods

SCHEDULE = "a_schedule_scales_the_learning_rate_of_the_options"


class Compounds(MomentumMaster):
    def scale_learning_rate(self, factor):
        self.rate_now *= factor


class Forgets(MomentumMaster):
    def scale_learning_rate(self, factor):
        pass


class Replaces(MomentumMaster):
    def scale_learning_rate(self, factor):
        self.rate_now = factor


rule(SCHEDULE, "at 0.5 after 0.25, must be the same", master=Compounds)
rule(SCHEDULE, "half the learning rate changes no weight", master=Forgets)
rule(SCHEDULE, "at 1.0 of the learning rate and without a schedule", master=Replaces)
rule("every_batch_of_a_period_counts", "twice the first gradient of three", makes_local_steps=True)


# ---------------------------------------------------------------- messages and shared memory

AGREE = "messages_and_shared_memory_agree[0-none]"


class Clips(DownpourMaster):
    def apply(self, central, update, weight):
        super().apply(central, update.clip(-0.5, 0.5), weight)


class Rebinds(MomentumMaster):
    def apply(self, central, update, weight):
        self.memory = {"velocity": self.memory["velocity"] * MOMENTUM + update}
        central -= np.float32(self.rate) * self.memory["velocity"]


class Counts(MomentumMaster):
    n_steps = 0

    def apply(self, central, update, weight):
        self.n_steps += 1
        super().apply(central, update, weight)


class Norm(MomentumMaster):
    def apply(self, central, update, weight):
        super().apply(central, update / max(1.0, np.linalg.norm(update)), weight)


class IgnoresWeight(MomentumMaster):
    def exchange_block(self, central, update, answer, weight, block):
        super().exchange_block(central, update, answer, min(weight * 2, 1.0), block)


class Owns(FeedbackWorker):
    def own(self, central):
        self.weights = self.answer = central

    def step(self, n_samples):
        self.weights -= np.float32(0.01) * self.gradient
        return True


class Cuts(MomentumMaster):
    by_layer = True

    def blocks(self, n_weights, n_blocks):
        return [slice(0, n_weights // 2), slice(n_weights // 2, n_weights)]


class Misses(MomentumMaster):
    def blocks(self, n_weights, n_blocks):
        return [slice(0, n_weights - 1)]


class Stays(FeedbackWorker):
    def live_in(self, memory):
        pass


class MovesEmpty(FeedbackWorker):
    def live_in(self, memory):
        self.weights = self.answer = memory


MOMENTUM = np.float32(0.9)
rule(AGREE, "weights in shared memory and by messages", base=Downpour,
     master_half=lambda self, options, n, n_workers: Clips(self.optimizer(options, n)))  # fmt: skip
rule(AGREE, "weights in shared memory and by messages", master=Rebinds)
rule(AGREE, "weights in shared memory and by messages", master=Norm)
rule(AGREE, "n_steps", master=Counts)
rule("messages_and_shared_memory_agree[0-scale]", "weights in shared memory and by messages", master=IgnoresWeight)
rule("a_worker_alone_agrees_too", "weights of one worker in memory and by messages", worker=Owns)
COVER = "blocks_cover_the_weights_once_and_cut_no_layer_of_a_rule_by_layer"
rule(COVER, r"\['hidden/w'\].*\n?.*blocks .* cut layers|blocks .* cut layers", master=Cuts)
rule(COVER, "14529", master=Misses)
MOVE = "weights_of_a_worker_may_move_to_memory_of_its_group"
rule(MOVE, "`weights` after `live_in` are not the memory", worker=Stays)
rule(MOVE, "weights in the memory and before", worker=MovesEmpty)


class Scales(AllreduceWorker):
    """By layer, of the gradient of this rank alone if the ranks make parts of a step."""

    def step(self, n_samples):
        for layer in self.layers:
            self.gradient[layer.part] /= np.abs(self.gradient[layer.part]).mean()
        return super().step(n_samples)


class Waits(AllreduceWorker):
    def share(self, make):
        super().share(make)
        self.weights = aligned_empty(len(self.weights))
        return self._shared


PARTS = "a_step_in_parts_is_the_whole_step"
rule(PARTS, "weights after steps in parts and whole", base=Allreduce,
     worker_half=lambda self, options, n: Scales(n, self.optimizer(options, n)))  # fmt: skip
rule(PARTS, "weights after steps in parts and whole", base=Allreduce,
     worker_half=lambda self, options, n: Waits(n, self.optimizer(options, n)))  # fmt: skip


# ---------------------------------------------------------------- ends and beginnings

RESUMED = "a_resumed_training_goes_on_bit_for_bit"


class ForgetsError(FeedbackWorker):
    def state(self):
        return {}


class ForgetsVelocity(MomentumMaster):
    def state(self):
        return {}

    def load_state(self, state):
        pass


class KeepsObjects(FeedbackWorker):
    def state(self):
        return {**super().state(), "more": {"a": 1}}


class Refuses(MomentumMaster):
    def load_state(self, state):
        super().load_state(state)
        self.memory["velocity"][:] = 0


class Loses(MomentumMaster):
    def __init__(self, n_weights, rate):
        super().__init__(n_weights, rate)
        self.memory["counts"] = np.zeros(n_weights, np.float32)

    def apply(self, central, update, weight):
        self.memory["counts"] += 1
        super().apply(central, update, weight)

    def load_state(self, state):
        super().load_state({**state})
        del self.memory["counts"]


class Breaks(MomentumMaster):
    def load_state(self, state):
        super().load_state(state)
        self.rate_now = np.nan


rule(f"{RESUMED}[turns]", "a resumed and of an undisturbed training", worker=ForgetsError)
rule(f"{RESUMED}[rounds]", "a resumed and of an undisturbed training", master=ForgetsVelocity)
rule(f"{RESUMED}[turns]", "`state` has numbers, text and vectors", worker=KeepsObjects)
rule("a_resumed_training_in_shared_memory_goes_on_bit_for_bit", "of an undisturbed training", worker=ForgetsError)
LEAVE = "workers_may_leave_and_join[workers leave]"
rule(LEAVE, "'memory.velocity' of the master with 4 and 2 workers", master=Refuses)
rule(LEAVE, "the master's state lacks 'memory.counts' with 2", master=Loses)
rule(LEAVE, "weights with 2 workers", master=Breaks)
