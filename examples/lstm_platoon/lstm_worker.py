"""Worker of the LSTM example: the script of lstm.py, in the hands of a controller (lstm_controller.py)."""

import numpy as np
from lstm import Lstm

from nnlo_opt.controller import EASGD, channel

#: batches between two exchanges with the central parameters
SYNC_EVERY = 10

if __name__ == "__main__":
    worker = channel.Soldier(port=5567)
    lstm = Lstm(seed=worker.rank)
    worker.init_shared_params(lstm.params, EASGD(alpha=0.5), cleanup=worker.rank == 1)
    lstm.write()
    while (order := worker.send_request("next")) != "stop":
        if order == "train":
            for _ in range(SYNC_EVERY):
                lstm.train_batch()
            lstm.read()
            worker.sync_params()
            lstm.write()
            worker.send_request({"done": SYNC_EVERY})
        else:
            worker.copy_to_local()
            lstm.write()
            if worker.send_request({"error": lstm.error()}) == "best":
                np.savez("lstm_best.npz", *lstm.params)
