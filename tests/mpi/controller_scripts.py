"""What ranks run in tests of controllers: `mpirun python controller_scripts.py NAME`, as a user's script."""

import os
import signal
import sys

import numpy as np

from nnlo_opt.controller import EASGD, Controller, Worker, channel, is_controller
from nnlo_opt.core.base.errors import ConfigurationError

TRUTH = np.array([1.0, -2.0, 3.0, 0.5])


class UntilEnough(Controller):
    """Trains a number of batches."""

    n_batches = 0
    enough = 3000

    def handle_control(self, request, worker):
        if request == "next":
            return "train" if self.n_batches < self.enough else "stop"
        if isinstance(request, dict) and "done" in request:
            self.n_batches += request["done"]
        return None


class Regression:
    """Learns `TRUTH` by NumPy."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        self.weights = self.rng.normal(size=(4, 1)).astype(np.float32)

    def batch(self):
        x = self.rng.normal(size=(16, 4))
        self.weights -= 0.05 * x.T @ (x @ self.weights - (x @ TRUTH)[:, None]) / 16


def quality(weights):
    return "a good model" if np.allclose(weights.ravel(), TRUTH, atol=0.05) else f"a bad model {weights}"


def trains():
    if is_controller():
        controller = UntilDone()
        controller.serve()
        enough = controller.n_batches >= controller.enough
        print(f"controller: {3000 if enough else 0} batches, {quality(controller.shared_params[0])}")
        return
    worker = Worker()
    model = Regression(worker.rank)
    weights, total = model.weights, np.zeros(100)
    worker.init_shared_params([weights, total], EASGD(0.5), cleanup=worker.rank == 3)
    start = Regression(3).weights
    mine = "my centre is yours" if (weights == start).all() else "my centre is my own"
    while worker.send_request("next") == "train":
        for _ in range(10):
            model.batch()
        worker.sync_params()
        worker.send_request({"done": np.int64(10)})
    total += worker.rank
    for _ in range(500):
        worker.sync_params()
    # Each worker hands the centre the rest of its own: none is lost if exchanges do not mix.
    worker.lock()
    worker.shared_params[1] += total
    worker.unlock()
    worker.send_request("added")
    while worker.send_request("who") != 3:
        pass
    kept = np.allclose(worker.shared_params[1], 6.0)
    worker.copy_to_local()
    sums = "the sum is kept" if kept else f"the sum is {worker.shared_params[1]}"
    print(f"worker {worker.rank}: {quality(weights)}, {sums}, {mine}, {worker.send_request('unknown')}")


class UntilDone(UntilEnough):
    """Counts workers."""

    n_added = 0

    def handle_control(self, request, worker):
        self.n_added += request == "added"
        return self.n_added if request == "who" else super().handle_control(request, worker)


def is_killed():
    class Hearing(UntilEnough):
        lost = False

        def handle_control(self, request, worker):
            return self.lost if request == "heard" else super().handle_control(request, worker)

        def worker_lost(self, worker):
            self.lost = True
            print(f"controller: lost {worker}, left {sorted(self.workers)}", flush=True)

    if is_controller():
        Hearing().serve()
        print("controller: the end", flush=True)
        return
    worker = Worker()
    model = Regression(worker.rank)
    worker.init_shared_params([model.weights])
    if worker.rank == 2:
        worker.lock()
        os.kill(os.getpid(), signal.SIGKILL)
    while not worker.send_request("heard"):
        model.batch()
        worker.sync_params()
    print(f"worker {worker.rank} has trained", flush=True)


def makes_mistakes():
    play(UntilEnough, make_mistakes)


def make_mistakes(worker):
    params = [np.zeros(4, np.float32)]

    def refused(call, *arguments):
        try:
            call(*arguments)
        except ConfigurationError as error:
            print(error)

    refused(worker.sync_params)
    refused(worker.send_request, {1, 2})
    refused(worker.init_shared_params, params, 0.5)
    worker.init_shared_params(params, lambda local, central: (local, [np.ones(3)]))
    refused(worker.init_shared_params, params)
    refused(worker.sync_params)
    print("kept", worker.shared_params[0].sum())


def play(controller, work):
    """Have the controller, which is made on its rank alone, serve one that does its work."""
    if is_controller():
        controller().serve()
    else:
        work(Worker())


def has_another_model():
    play(UntilEnough, lambda worker: worker.init_shared_params([np.zeros(3 + worker.rank, np.float32)]))


def is_no_controller():
    Worker()


def is_two_workers():
    play(UntilEnough, lambda worker: Worker() if worker.rank == 2 else None)


def overrides_nothing():
    play(Controller, lambda worker: worker.send_request("next"))


def does_not_serve():
    if is_controller():
        Controller()
    else:
        Worker().send_request("next")


class Unfit(Controller):
    def handle_control(self, request):
        return {1} if request == "set" else 1 / 0


def answers_with_a_set():
    play(Unfit, lambda worker: worker.send_request("set"))


def raises():
    play(Unfit, lambda worker: worker.send_request("fail"))


class LikePlatoons(channel.Lieutenant):
    """Controller with the calls of Platoon's scripts, of all versions."""

    def __init__(self, default_args):
        channel.Lieutenant.__init__(self, **default_args)
        self.n_minibatches, self.n_done = 0, 0

    def handle_control(self, req, worker_id):
        if req == "next":
            answer = "train" if self.n_minibatches < 100 else "stop"
            if answer == "stop":
                self.worker_is_done(worker_id)
                self.n_done += 1
            return answer
        self.n_minibatches += req["done"]
        return None


def lieutenant():
    args = channel.Controller.default_parser().parse_args(["--control-port", "5567"])
    controller = LikePlatoons(channel.Controller.default_arguments(args))
    controller.init_control(port=5567)
    code = controller.serve()
    print(controller.n_minibatches // 100 * 100, "minibatches", controller.n_done, "done", code, flush=True)


class Steps:
    """A rule of one's own, as an object of Platoon's `ParamSyncRule`."""

    def update_params(self, local_params, master_params):
        for own, shared in zip(local_params, master_params, strict=True):
            shared[...] = own


def soldier():
    parser = channel.Worker.default_parser()
    parser.add_argument("--init", action="store_true")
    worker = channel.Soldier(5567, socket_timeout=1000, **channel.Worker.default_arguments(parser.parse_args([])))
    is_first = worker.global_rank == 0
    params = {"w": np.full(2, 7.0 if is_first else 0.0)}
    worker.init_shared_params("job", params.values(), param_sync_rule=Steps(), cleanup=is_first)
    while worker.send_req("next") == "train":
        worker.sync_params()
        worker.send_req({"done": 10})
    worker.lock_params()
    params["w"] += worker.shared_params[0] - 7
    worker.copy_to_global(synchronous=False)
    worker.unlock_params()
    try:
        worker.recv_mb()
    except ConfigurationError as error:
        print(error, flush=True)
    print(f"soldier {worker.rank} of {worker.global_size} is done: {worker.shared_params[0][0]}", flush=True)
    worker.close()


def trains_torch():
    play(UntilEnough, train_torch)


def train_torch(worker):
    import torch

    torch.manual_seed(worker.rank)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    worker.init_shared_params([parameter.detach().numpy() for parameter in model.parameters()])
    truth = torch.tensor(TRUTH, dtype=torch.float32)
    while worker.send_request("next") == "train":
        for _ in range(10):
            x = torch.randn(16, 4)
            optimizer.zero_grad()
            ((model(x)[:, 0] - x @ truth) ** 2).mean().backward()
            optimizer.step()
        worker.sync_params()
        worker.send_request({"done": 10})
    worker.copy_to_local()
    learnt = torch.allclose(model.weight[0], truth, atol=0.05)
    print(f"worker {worker.rank} {'learnt' if learnt else model.weight}")


globals()[sys.argv[1]]()
