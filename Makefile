# `make demo` and `make test` each do everything from a fresh clone: they make .venv, install the tested set, and run.
PYTHON ?= python3
BIN := .venv/bin
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# The tests start hundreds of processes, each of which would otherwise compile all of its imports.
export PYTHONDONTWRITEBYTECODE :=
# Turn off ONNX Runtime's telemetry.
export ORT_DISABLE_TELEMETRY := 1

.PHONY: demo loop map test test-all test-tflite test-lowest test-latest mutation check check-platforms check-deploy bench bench-pictures bench-accelerator bench-triton bench-perf-analyzer traces test-accelerators test-jax test-jax-export jax-models test-ray demo-models generate lock clean help

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/'

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/.demo: pyproject.toml constraints.txt | .venv/bin/python
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[demo]'
	@touch $@

EXTRAS := demo,torch,export,text,cel,quantize,release,partition,telemetry,pipelines,kafka,cases,fleet-postgres
# The groups of pyproject.toml need a newer pip than some systems bring.
.venv/.dev: pyproject.toml constraints.txt | .venv/bin/python
	$(BIN)/pip install --quiet --upgrade 'pip>=25.1'
	$(BIN)/pip install --quiet --constraint constraints.txt --group dev --editable '.[$(EXTRAS)]'
	@touch $@

demo: .venv/.demo  ## the main job on this machine, with a report
	$(BIN)/upwell demo $(ARGS)

loop: .venv/.dev  ## drift, cases, a better model and its roll-out on this machine, with a plot (minutes)
	$(BIN)/python examples/digits/loop.py $(ARGS)

# tflite-runtime is built for numpy 1, Linux and Python up to 3.11; on such systems it gets its own environment.
TFLITE := $(shell $(PYTHON) -c 'import sys; print(".venv-tflite/.done" * (sys.platform == "linux" and sys.version_info < (3, 12)))')
.venv-tflite/.done: pyproject.toml constraints-tflite.txt
	$(PYTHON) -m venv --clear .venv-tflite
	.venv-tflite/bin/pip install --quiet --upgrade 'pip>=25.1'
	.venv-tflite/bin/pip install --quiet --constraint constraints-tflite.txt --group test --editable '.[edge,quantize,tflite]'
	@touch $@

# Tests that judge time run two at a time, mostly waiting (in `make test-all` alone); the
# rest runs five at a time on two cores, since it also waits a lot. Meanwhile the asserts of all test modules are
# rewritten into their bytecode, which each of the five would else do for itself.
TESTED := tests/faults tests/integration tests/interop tests/unit tests/property tests/contract tests/accelerators
ALONE = $(shell grep -rl 'mark\.alone' --include='test_*.py' tests/faults tests/integration tests/unit/edge)
QUICK := not benchmark and not slow and not exhaustive
ON_TFLITE = $(if $(TFLITE),.venv-tflite/bin/python -m pytest --numprocesses 2 -m '$(2)' \
	$(shell grep -rlE 'mark\.tflite_runtime|TFLITE_PACKAGES' --include='test_*.py' $(1)))
PARALLEL := --numprocesses 5 --dist worksteal --durations 25
test: .venv/.dev $(TFLITE)  ## the test suite (minutes)
ifdef ARGS
	$(BIN)/python -m pytest -m '$(QUICK)' $(ARGS)
else
	nice -n 19 $(BIN)/python -m pytest --collect-only -qq $(TESTED) >/dev/null 2>&1 & \
	$(BIN)/python -m pytest -m '$(QUICK) and alone' --numprocesses 2 --dist loadfile $(ALONE); result=$$?; wait; exit $$result
	$(BIN)/python -m pytest -m '$(QUICK) and not alone' $(PARALLEL) $(TESTED)
	$(call ON_TFLITE,tests/unit tests/contract,$(QUICK) and tflite_runtime)
endif

test-all: .venv/.dev $(TFLITE)  ## all tests: every case of every grid, every property with new examples, slow tests (an hour)
ifdef ARGS
	$(BIN)/python -m pytest -m 'not benchmark' --hypothesis-profile thorough $(ARGS)
else
	$(BIN)/python -m pytest -m 'not benchmark and alone' $(ALONE)
	$(BIN)/python -m pytest -m 'not benchmark and not alone' --hypothesis-profile thorough $(PARALLEL) $(TESTED)
	$(call ON_TFLITE,tests/unit tests/contract tests/integration,tflite_runtime)
endif

test-tflite: $(TFLITE)  ## the tests of tflite-runtime (Linux, Python up to 3.11), in their own environment
	$(call ON_TFLITE,tests/unit tests/contract tests/integration,tflite_runtime) $(ARGS)

# The lowest and latest versions that pyproject.toml admits, except torch; deprecations there do not fail the tests.
.venv-lowest/.done .venv-latest/.done: .venv-%/.done: pyproject.toml .ci/versions.py | .venv/.dev
	$(PYTHON) -m venv --clear .venv-$*
	$(BIN)/python .ci/versions.py $* $(EXTRAS) .venv-$*
	.venv-$*/bin/pip install --quiet --upgrade 'pip>=25.1'
	.venv-$*/bin/pip install --quiet --constraint .venv-$*/constraints.txt --group dev --editable '.[$(EXTRAS)]'
	@touch $@

test-lowest test-latest: test-%: .venv-%/.done  ## the unit and contract suites on the lowest versions that pyproject.toml admits, or the latest
	.venv-$*/bin/python -m pytest -W default -m '$(QUICK) and not alone and not tflite_runtime' --numprocesses 2 --dist worksteal tests/unit tests/contract $(ARGS)

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

map:  ## each package and module with the first sentence of its docstring: `make map | grep -i battery`
	@$(PYTHON) .ci/print_map.py

bench: .venv/.dev  ## timings beside their baselines; prints ratios, medians and spread
	$(BIN)/python -m pytest -m benchmark -s tests/benchmarks $(ARGS)

.venv-triton/.done: tests/benchmarks/triton_bench/requirements.txt
	$(PYTHON) -m venv .venv-triton
	.venv-triton/bin/pip install --quiet --requirement $<
	@touch $@

bench-triton: .venv/.dev .venv-triton/.done  ## beside Triton and MLServer in one run (Linux, Python 3.11, h2load); ARGS=--quick for a first look
	$(BIN)/python -m tests.benchmarks.triton_bench $(ARGS)

.venv-opencv/.done:
	$(BIN)/pip install --quiet --no-deps --target .venv-opencv opencv-python-headless==5.0.0.93
	@touch $@

.venv-s3/.done:  ## object storage with S3's interface for tests; in its own environment, since it needs an older dateutil
	$(PYTHON) -m venv .venv-s3
	.venv-s3/bin/pip install --quiet 'moto[s3]==5.2.5' flask==3.1.3 flask-cors==6.0.5
	@touch $@

.venv-studio/.done:  ## Label Studio's SDK for tests of exports; in its own environment, since it pins OpenCV
	$(PYTHON) -m venv .venv-studio
	.venv-studio/bin/pip install --quiet label-studio-sdk==2.1.2
	@touch $@

bench-perf-analyzer: .venv/.dev  ## NVIDIA's perf_analyzer, named by PERF_ANALYZER, against service, agent and, where bench-triton has built it, Triton
	$(BIN)/python -m tests.benchmarks.perf_analyzer $(ARGS)

bench-pictures: .venv/.dev .venv-opencv/.done  ## an encoded picture in, an answer out, beside loops of Pillow and OpenCV
	$(BIN)/python -m tests.benchmarks.pictures --opencv .venv-opencv $(ARGS)

bench-accelerator: .venv/.dev  ## a network like ResNet-50 over gRPC beside a bare torch loop; ARGS="--device cpu --quick" for a first look
	$(BIN)/python -m tests.benchmarks.accelerator_throughput $(ARGS)

traces: .venv/.dev  ## the router on recorded links: writes the table of docs/performance.md (TRACES=folder of mahimahi *.up)
	$(BIN)/python tests/benchmarks/trace_table.py $(TRACES) --seeds 3 --write docs/performance.md

test-accelerators: .venv/.dev  ## each accelerator in its own environment; writes tests/accelerators/results.md
	$(BIN)/python .ci/accelerators.py $(ARGS)

# JAX has its own environment, so that nothing else comes to depend on it; versions not pinned there are as here.
.venv-jax/.done .venv-jax-export/.done: .venv-%/.done: tests/jax/requirements/%.txt constraints.txt pyproject.toml
	$(PYTHON) -m venv --clear .venv-$*
	grep -vxE "($$(grep -ohE '^[a-z0-9-]+==' tests/jax/requirements/*.txt | paste -sd '|')).*" constraints.txt > .venv-$*/constraints.txt
	.venv-$*/bin/pip install --quiet --constraint .venv-$*/constraints.txt --requirement $< --editable '.[cloud]'
	@touch $@

test-jax: .venv-jax/.done  ## engine jax in its own environment (Python 3.11 or later)
	.venv-jax/bin/python -m pytest tests/jax $(ARGS)

test-jax-export: .venv-jax-export/.done  ## `upwell model export-jax` in its environment, with torch and torchax
	.venv-jax-export/bin/python -m pytest tests/jax/test_export.py $(ARGS)

jax-models: .venv-jax-export/.done  ## rebuild the programs that tests/jax serves
	.venv-jax-export/bin/python -m tests.jax.make_models

# Ray has many dependencies; what its requirements do not pin is as in the tested set.
.venv-ray/.done: tests/ray/requirements.txt constraints.txt pyproject.toml
	$(PYTHON) -m venv --clear .venv-ray
	grep -vxE "($$(grep -ohE '^[a-z0-9-]+==' $< | paste -sd '|')).*" constraints.txt > .venv-ray/constraints.txt
	.venv-ray/bin/pip install --quiet --constraint .venv-ray/constraints.txt --requirement $< --editable '.[cloud]'
	@touch $@

test-ray: .venv-ray/.done  ## the service on a Ray cluster of two nodes that loses one, in its own environment (minutes)
	.venv-ray/bin/python -m pytest tests/ray $(ARGS)

demo-models:  ## train and export the demo's models again (needs torch and litert-torch; in its own environment)
	$(PYTHON) -m venv .venv-models
	.venv-models/bin/pip install --quiet --requirement examples/digits/requirements.txt
	.venv-models/bin/python examples/digits/make_models.py

generate: .venv/.dev  ## generate the protobuf code again
	$(BIN)/python protos/generate.py

lock: .venv/.dev  ## resolve constraints.txt again
	$(BIN)/python .ci/lock.py

clean:  ## remove everything that make made
	rm -rf .venv .venv-deploy .venv-jax .venv-jax-export .venv-models .venv-accelerators .venv-latest .venv-lowest .venv-ray .venv-tflite .venv-triton demo-out
