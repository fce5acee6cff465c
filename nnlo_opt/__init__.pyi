from nnlo_opt.ancestors.manager.algo import Algo as Algo
from nnlo_opt.ancestors.manager.data import Data as Data
from nnlo_opt.ancestors.manager.data import H5Data as H5Data
from nnlo_opt.ancestors.manager.manager import MPIKFoldManager as MPIKFoldManager
from nnlo_opt.ancestors.manager.manager import MPIManager as MPIManager
from nnlo_opt.ancestors.manager.model import ModelBuilder as ModelBuilder
from nnlo_opt.ancestors.manager.model import ModelFromJson as ModelFromJson
from nnlo_opt.app.api.optimize import optimize as optimize
from nnlo_opt.app.api.run import FrozenTrial as FrozenTrial
from nnlo_opt.app.api.run import Run as Run
from nnlo_opt.app.api.run import SearchResult as SearchResult
from nnlo_opt.app.api.run import load_run as load_run
from nnlo_opt.app.api.study import Study as Study
from nnlo_opt.core.base.errors import ConfigurationError as ConfigurationError
from nnlo_opt.core.base.errors import JournalError as JournalError
from nnlo_opt.core.base.errors import NnloError as NnloError
from nnlo_opt.core.base.errors import SearchWarning as SearchWarning
from nnlo_opt.core.base.errors import TrialError as TrialError
from nnlo_opt.engine.objective.checkpoint import TrialCheckpoint as TrialCheckpoint
from nnlo_opt.engine.objective.output import report as report
from nnlo_opt.engine.objective.rank import RunningTrial as RunningTrial
from nnlo_opt.engine.objective.rank import TrialFold as TrialFold
from nnlo_opt.engine.objective.torch_group import torch_process_group as torch_process_group
from nnlo_opt.space import Categorical as Categorical
from nnlo_opt.space import Constant as Constant
from nnlo_opt.space import Integer as Integer
from nnlo_opt.space import Ordinal as Ordinal
from nnlo_opt.space import Real as Real
from nnlo_opt.space import Space as Space
from nnlo_opt.space import When as When

__version__: str
__all__: list[str]
