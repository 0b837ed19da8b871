# `make demo` and `make test` each do everything from a fresh clone: they make .venv, install the tested set, and run.
PYTHON ?= python3
BIN := .venv/bin
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: demo test check check-platforms bench traces test-slow test-cuts test-accelerators demo-models generate lock clean help

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/'

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/.demo: pyproject.toml constraints.txt | .venv/bin/python
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[demo]'
	@touch $@

# The groups of pyproject.toml need a newer pip than some systems bring.
.venv/.dev: pyproject.toml constraints.txt | .venv/bin/python
	$(BIN)/pip install --quiet --upgrade 'pip>=25.1'
	$(BIN)/pip install --quiet --constraint constraints.txt --group dev --editable '.[demo,torch,tflite,cel,quantize,bundle,partition,http]'
	@touch $@

demo: .venv/.demo  ## the main job on this machine, with a report
	$(BIN)/upwell demo $(ARGS)

# The faults depend on time and have the machine for themselves; the rest shares it.
test: .venv/.dev  ## the test suite (minutes)
ifdef ARGS
	$(BIN)/python -m pytest -m 'not benchmark and not slow and not cuts' $(ARGS)
else
	$(BIN)/python -m pytest -m 'not benchmark and not slow and not cuts' tests/faults
	$(BIN)/python -m pytest -m 'not benchmark and not slow and not cuts' --numprocesses 2 --dist worksteal \
	  tests/integration tests/interop tests/unit tests/property tests/contract tests/accelerators
endif

check: .venv/.dev  ## lint, types, layers, generated code
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python protos/generate.py --check
	$(BIN)/python .ci/write_configuration.py --check

check-platforms: .venv/.dev  ## resolve the extras for every supported platform and write the table of README.md
	$(BIN)/python .ci/check_platforms.py

bench: .venv/.dev  ## timings beside their baselines; prints ratios, medians and spread
	$(BIN)/python -m pytest -m benchmark -s tests/benchmarks $(ARGS)

traces: .venv/.dev  ## the router on recorded links: writes the table of docs/routing.md (TRACES=folder of mahimahi *.up)
	$(BIN)/python tests/benchmarks/trace_table.py $(TRACES) --seeds 3 --write docs/routing.md

test-slow: .venv/.dev  ## the promise over thousands of requests, and the wheel on its own (about 15 minutes)
	$(BIN)/python -m pytest -m slow $(ARGS)

test-cuts: .venv/.dev  ## every legal cut of every model recomposed
	$(BIN)/python -m pytest -m cuts --numprocesses 2 $(ARGS)

test-accelerators: .venv/.dev  ## each accelerator in an environment of its own; writes the matrix of README.md and docs/accelerators.md
	$(BIN)/python .ci/accelerators.py $(ARGS)

demo-models:  ## train and export the demo's models again (needs torch and litert-torch; an environment of its own)
	$(PYTHON) -m venv .venv-models
	.venv-models/bin/pip install --quiet --requirement examples/digits/requirements.txt
	.venv-models/bin/python examples/digits/make_models.py

generate: .venv/.dev  ## generate the protobuf code again
	$(BIN)/python protos/generate.py

lock: .venv/.dev  ## resolve constraints.txt again
	$(BIN)/python .ci/lock.py

clean:  ## remove everything that make made
	rm -rf .venv .venv-models .venv-accelerators demo-out
