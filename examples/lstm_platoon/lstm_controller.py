"""Controller of the LSTM example: it counts batches, orders validations, and stops when these get no better.

mpirun -n 1 python examples/lstm_platoon/lstm_controller.py : -n 2 python examples/lstm_platoon/lstm_worker.py
"""

from nnlo_opt.controller import channel


class LstmController(channel.Lieutenant):
    """Early stopping with patience.

    Args:
        max_batches: batches of all workers together after which the training ends.
        valid_every: batches between two validations.
        patience: validations without a better error after which the training ends.
    """

    def __init__(self, max_batches=3000, valid_every=300, patience=3):
        channel.Lieutenant.__init__(self)
        self.max_batches, self.valid_every, self.patience = max_batches, valid_every, patience
        self.n_batches = self.n_validations = 0
        self.errors = []

    def handle_control(self, request, worker):
        """Answer "next" with "train", "valid" or "stop"; take in {"done": batches} and {"error": validation error}."""
        if request == "next":
            if self.n_batches // self.valid_every > self.n_validations:
                self.n_validations += 1
                return "valid"
            return "stop" if self.n_batches >= self.max_batches or self.is_no_better() else "train"
        if "done" in request:
            self.n_batches += request["done"]
        if "error" in request:
            self.errors.append(request["error"])
            print(f"{self.n_batches} batches: error {request['error']:.3f}, by worker {worker}", flush=True)
            return "best" if request["error"] <= min(self.errors) else None
        return None

    def is_no_better(self):
        """Return True if the last validations have not found a better error."""
        return len(self.errors) > self.patience and min(self.errors[-self.patience :]) > min(self.errors)


if __name__ == "__main__":
    controller = LstmController()
    controller.init_control(port=5567)  # the number is Platoon's, and not needed
    controller.serve()
    print(f"best error {min(controller.errors, default=1.0):.3f} after {controller.n_batches} batches")
