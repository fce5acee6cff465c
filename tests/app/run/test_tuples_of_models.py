from unittest.mock import Mock

from nnlo_opt.app.run.workload.workload import ModuleWorkload
from nnlo_opt.core.comm.run_messages import OpenRun
from nnlo_opt.space import Categorical, Space


class Noting:
    """In place of a `ModelMaker`: it notes the parameters of a model."""

    def build(self, parameters, options, seed, samples):
        self.parameters = parameters


def test_a_model_gets_the_tuples_of_the_run_that_is_open():
    maker, space = Noting(), Space([Categorical([(3, 3), [5, 5]], name="kernel")])
    workload = ModuleWorkload(None, None, searches=True, maker=maker, data=Mock())
    for point in ({"kernel": [3, 3]}, {"kernel": [5, 5]}):
        workload.open_run(OpenRun(directory="", with_tuples=space.with_tuples))
        workload.build(point, None, 0)
        assert repr(maker.parameters) == repr(space.given(point))
    workload.open_run(OpenRun(directory=""))
    workload.build({"kernel": [3, 3]}, None, 0)
    assert maker.parameters == {"kernel": [3, 3]}
