# `make demo` and `make test` each do everything from a fresh clone: they make .venv, install the tested set, and run.
PYTHON ?= python3
BIN := .venv/bin
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# The tests start hundreds of processes, which else would each compile all that they import.
export PYTHONDONTWRITEBYTECODE :=
# ONNX Runtime tells its maker nothing about what is run here.
export ORT_DISABLE_TELEMETRY := 1

.PHONY: demo test test-all mutation check check-platforms check-deploy bench bench-accelerator bench-triton traces test-accelerators test-jax test-jax-export jax-models test-ray demo-models generate lock clean help

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
	$(BIN)/pip install --quiet --constraint constraints.txt --group dev --editable '.[demo,torch,tflite,cel,quantize,bundle,partition,http,telemetry]'
	@touch $@

demo: .venv/.demo  ## the main job on this machine, with a report
	$(BIN)/upwell demo $(ARGS)

# Three at a time on two cores, since they wait a lot. What judges time strictly has the machine for itself, and is no part
# of `make test`.
TESTED := tests/faults tests/integration tests/interop tests/unit tests/property tests/contract tests/accelerators
QUICK := not benchmark and not slow and not exhaustive
PARALLEL := --numprocesses 3 --dist worksteal --durations 25
test: .venv/.dev  ## the test suite (five minutes on two cores)
	$(BIN)/python -m pytest -m '$(QUICK)' $(or $(ARGS),$(PARALLEL) $(TESTED))

test-all: .venv/.dev  ## all tests: every case of every grid, every property with new examples, what takes long (an hour)
ifdef ARGS
	$(BIN)/python -m pytest -m 'not benchmark' --hypothesis-profile thorough $(ARGS)
else
	$(BIN)/python -m pytest -m 'not benchmark and alone' tests/faults
	$(BIN)/python -m pytest -m 'not benchmark and not alone' --hypothesis-profile thorough $(PARALLEL) $(TESTED)
endif

mutation: .venv/.dev  ## which seeded faults the quick tests catch (ARGS="router codec" for some areas)
	$(BIN)/python -m tests.mutation_check --marks '$(QUICK)' $(ARGS)

check: .venv/.dev  ## lint, types, layers, generated code
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python protos/generate.py --check
	$(BIN)/python .ci/write_configuration.py --check

check-platforms: .venv/.dev  ## resolve the extras for every supported platform and write the table of README.md
	$(BIN)/python .ci/check_platforms.py

.venv-deploy/.done: .ci/check_deploy.txt
	$(PYTHON) -m venv .venv-deploy
	.venv-deploy/bin/pip install --quiet --requirement $<
	.venv-deploy/bin/pip install --quiet --no-deps kserve==0.21.0
	@touch $@

check-deploy: .venv-deploy/.done  ## examples/deploy against the schemas of Kubernetes and KServe, and hadolint
	.venv-deploy/bin/python .ci/check_deploy.py

bench: .venv/.dev  ## timings beside their baselines; prints ratios, medians and spread
	$(BIN)/python -m pytest -m benchmark -s tests/benchmarks $(ARGS)

.venv-triton/.done: tests/benchmarks/triton_bench/requirements.txt
	$(PYTHON) -m venv .venv-triton
	.venv-triton/bin/pip install --quiet --requirement $<
	@touch $@

bench-triton: .venv/.dev .venv-triton/.done  ## beside Triton and MLServer in one run (Linux, Python 3.11, h2load); ARGS=--quick for a first look
	$(BIN)/python -m tests.benchmarks.triton_bench $(ARGS)

bench-accelerator: .venv/.dev  ## a network of the class of ResNet-50 through gRPC beside a bare torch loop; ARGS="--device cpu --quick" for a first look
	$(BIN)/python -m tests.benchmarks.accelerator_throughput $(ARGS)

traces: .venv/.dev  ## the router on recorded links: writes the table of docs/performance.md (TRACES=folder of mahimahi *.up)
	$(BIN)/python tests/benchmarks/trace_table.py $(TRACES) --seeds 3 --write docs/performance.md

test-accelerators: .venv/.dev  ## each accelerator in an environment of its own; writes the matrix of docs/accelerators.md
	$(BIN)/python .ci/accelerators.py $(ARGS)

# JAX wants newer packages than the tested set has on Python 3.11; what its requirements do not pin is as there.
.venv-jax/.done .venv-jax-export/.done: .venv-%/.done: tests/jax/requirements/%.txt constraints.txt pyproject.toml
	$(PYTHON) -m venv --clear .venv-$*
	grep -vxE "($$(grep -ohE '^[a-z0-9-]+==' tests/jax/requirements/*.txt | paste -sd '|')).*" constraints.txt > .venv-$*/constraints.txt
	.venv-$*/bin/pip install --quiet --constraint .venv-$*/constraints.txt --requirement $< --editable '.[cloud]'
	@touch $@

test-jax: .venv-jax/.done  ## engine jax in an environment of its own (Python 3.11 or later)
	.venv-jax/bin/python -m pytest tests/jax $(ARGS)

test-jax-export: .venv-jax-export/.done  ## `upwell model export-jax` in its environment, with torch and torchax
	.venv-jax-export/bin/python -m pytest tests/jax/test_export.py $(ARGS)

jax-models: .venv-jax-export/.done  ## make the programs that tests/jax serves again
	.venv-jax-export/bin/python -m tests.jax.make_models

# Ray brings much of its own; what its requirements do not pin is as in the tested set.
.venv-ray/.done: tests/ray/requirements.txt constraints.txt pyproject.toml
	$(PYTHON) -m venv --clear .venv-ray
	grep -vxE "($$(grep -ohE '^[a-z0-9-]+==' $< | paste -sd '|')).*" constraints.txt > .venv-ray/constraints.txt
	.venv-ray/bin/pip install --quiet --constraint .venv-ray/constraints.txt --requirement $< --editable '.[cloud]'
	@touch $@

test-ray: .venv-ray/.done  ## the service on a Ray cluster of two nodes that loses one, in an environment of its own (minutes)
	.venv-ray/bin/python -m pytest tests/ray $(ARGS)

demo-models:  ## train and export the demo's models again (needs torch and litert-torch; an environment of its own)
	$(PYTHON) -m venv .venv-models
	.venv-models/bin/pip install --quiet --requirement examples/digits/requirements.txt
	.venv-models/bin/python examples/digits/make_models.py

generate: .venv/.dev  ## generate the protobuf code again
	$(BIN)/python protos/generate.py

lock: .venv/.dev  ## resolve constraints.txt again
	$(BIN)/python .ci/lock.py

clean:  ## remove everything that make made
	rm -rf .venv .venv-deploy .venv-jax .venv-jax-export .venv-models .venv-accelerators .venv-ray .venv-triton demo-out
