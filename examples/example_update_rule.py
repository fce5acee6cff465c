r"""An update rule with memory: workers push signs and keep the error of that, and the master has momentum.

    GetData mnist --source bundled
    mpirun -np 3 TrainingDriver --model examples/example_mlp.py --epochs 5 --learning-rate 0.02 \
        --mode examples/example_update_rule.py:ErrorFeedback

A sign is one bit of the 32 of a gradient. What it leaves out is added to the next gradient, so that nothing is lost in
the long run (Karimireddy et al., arXiv:1901.09847; layer by layer in Zheng, Huang and Kwok, arXiv:1905.10936).
"""

import numpy as np

from nnlo_opt.core.update_rules.rule import MasterHalf, UpdateRule, WorkerHalf

MOMENTUM = 0.9


class FeedbackWorker(WorkerHalf):
    """Pushes the sign of each number times the mean size of its layer, and remembers the difference."""

    def __init__(self, n_weights):
        super().__init__(n_weights)
        self.memory = {"error": np.zeros(n_weights, np.float32)}
        self.update = np.empty(n_weights, np.float32)

    def finish(self):
        wanted = self.memory["error"]  # changed in place, as all memory is
        wanted += self.gradient
        for layer in self.layers:
            np.sign(wanted[layer.part], out=self.update[layer.part])
            self.update[layer.part] *= np.abs(wanted[layer.part]).mean()
        wanted -= self.update
        return self.update


class MomentumMaster(MasterHalf):
    """Follows the running sum of the updates."""

    def __init__(self, n_weights, rate):
        self.memory = {"velocity": np.zeros(n_weights, np.float32)}
        self.rate = self.rate_now = rate

    def scale_learning_rate(self, factor):
        self.rate_now = self.rate * factor

    def apply(self, central, update, weight):  # of all weights, or in shared memory of a block, with its memory
        velocity = self.memory["velocity"]
        velocity *= MOMENTUM
        velocity += np.float32(weight) * update
        central -= np.float32(self.rate_now) * velocity

    def apply_round(self, central, updates):  # of --synchronous
        n_all = sum(n_samples for n_samples, _ in updates)
        self.apply(central, sum(np.float32(n_samples / n_all) * update for n_samples, update in updates), 1.0)


class ErrorFeedback(UpdateRule):
    """SGD with momentum along compressed gradients."""

    name = "error-feedback"
    makes_local_steps = False
    weighs_staleness = True

    def master_half(self, options, n_weights, n_workers):
        return MomentumMaster(n_weights, self.base_learning_rate(options))

    def worker_half(self, options, n_weights):
        return FeedbackWorker(n_weights)
