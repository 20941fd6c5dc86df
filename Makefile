# Everything a contributor runs. `make` alone lists it.
SHELL := /bin/bash
.DEFAULT_GOAL := help
PYTHON ?= $(shell command -v python3.11 || command -v python3)
# The Python that has a torch for the GPU: its tests run without the locked environment, which needs a package index.
GPU_PYTHON ?= python3
ON_GPU = $(filter gpu,$(firstword $(ARGS)))
UV_VERSION := 0.13.8
UV := .uv/bin/uv
BIN := .venv/bin
ARGS ?=
BASE ?= main
EXAMPLE ?= grpo-tiny
RUN_ppo-tiny := --pretend GPU=4
export OMP_NUM_THREADS ?= 1
export UV_PYTHON_DOWNLOADS := never
export UV_SYSTEM_CERTS := 1
export RAY_USAGE_STATS_ENABLED := 0
# Not all of the environment, which takes ten times as long: 4.5 s of processor time for 1,800 modules.
COMPILED := import torch.distributed, ray, rich.live, dljob.cli.runner, dljob.runtime.backend.embedded, \
	dljob.runtime.controller.prime_actor, dljob.runtime.worker.thread_host, dljob.runtime.worker.fork_host
# Where this is set, each process compiles all of torch again: 5.3 s of processor time an import, not 2.6.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup run test check verify house docs fmt cov bench exam bench-peers kafka recipes bench-guard soak sweep dist kube-build kube-up kube-down clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: .venv/.locked ## the locked environment in .venv (bootstraps uv by pip)

$(UV):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' || { echo "dljob needs Python 3.11; set PYTHON=/path/to/python3.11" >&2; exit 2; }
	@echo "setup 1/4: a folder for uv (.uv)"
	@$(PYTHON) -m venv .uv
	@echo "setup 2/4: uv $(UV_VERSION)"
	@.uv/bin/pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)

.venv/.locked: $(UV) pyproject.toml uv.lock
	@echo "setup 3/4: the locked environment (.venv), most of it torch and Ray: up to some minutes"
	@$(UV) sync --locked --all-extras --all-groups --python $(PYTHON)
	@echo "setup 4/4: bytecode of what a job imports, which its ranks would else compile all at once"
	@$(BIN)/python -c "$(COMPILED)"
	@touch $@

run: setup ## an example on an embedded Ray: GRPO, three faults (ARGS=--no-faults: the control); EXAMPLE=ppo-tiny: another one
	$(BIN)/python -m dljob.cli run examples/$(EXAMPLE)/dljob.yaml $(RUN_$(EXAMPLE)) $(if $(filter --no-faults,$(ARGS)),,$(addprefix --faults ,$(wildcard examples/$(EXAMPLE)/faults.yaml))) $(filter-out --no-faults,$(ARGS))

test: $(if $(ON_GPU),,setup) ## the usual tiers (ARGS=slow: searches and long jobs; gpu: jobs on one GPU; ROOM=runtime/rpc: all of one room; frameworks: published ones; CHANGED=1: what differs from BASE=main)
	$(if $(ON_GPU),$(GPU_PYTHON),$(BIN)/python) tests/tiers.py $(if $(ROOM),--room $(ROOM),$(if $(CHANGED),--changed $(BASE))) $(ARGS)

check: setup ## format, lint, types, imports; unit tests (but the slow) of the rooms that differ from BASE=main (ALL=1: of all)
	$(BIN)/ruff format --check --quiet .
	$(BIN)/ruff check --quiet .
	$(BIN)/codespell --quiet-level 2
	$(BIN)/lint-imports --no-cache >/dev/null || $(BIN)/lint-imports --no-cache
	$(BIN)/pyright --warnings & types=$$!; \
	$(if $(ALL),$(BIN)/python -m pytest -q -n 2 --dist worksteal -m "not slow" tests/unit,$(BIN)/python tests/tiers.py --near $(BASE) unit -- -m "not slow"); \
	unit=$$?; wait $$types && exit $$unit

fmt: setup ## format and fix what can be fixed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

verify: setup ## regenerate what is generated; fail on a difference
	$(BIN)/python -m dljob.spec.generate
	$(BIN)/python charts/generate.py
	$(BIN)/python observability/generate.py
	$(BIN)/python docs/generate.py
	git diff --exit-code -- crds charts docs/reference workers/dljob/{api,plan}/role_options.py

house: setup ## the pages of docs/reference that are made from the code: rooms, command, reasons, exit codes, environment
	$(BIN)/python docs/generate.py

docs: setup ## the documentation's site, in .site/site (strictly: a broken link is an error)
	$(BIN)/python docs/build.py $(ARGS)

cov: setup ## branch coverage of the pure rooms, which must be whole
	$(BIN)/python tests/tiers.py unit

bench: setup ## the figures of docs/benchmarks.md, on an otherwise quiet machine
	$(BIN)/python tests/bench/run.py $(ARGS)

exam: setup ## plant causes in jobs for real, and grade what `dljob why` says of each: hours (ARGS="--group disks", "--only NAME", --keep)
	$(BIN)/python tests/exam/run.py $(ARGS)

kafka: setup ## sources by Kafka's protocol, against Kafka's own broker (Java; its jars come from Maven Central, locked): minutes
	$(BIN)/python -m pytest -q -n 0 -W ignore::ResourceWarning tests/kafka $(ARGS)

recipes: setup ## what eight events cost published frameworks, alone and here: what docs/recipes lacks (ARGS="trl_sft rank": that; ARGS=--table: only the tables)
	$(BIN)/python tests/bench/frameworks/recipes.py $(ARGS)

bench-peers: setup ## dljob beside DLRover, Ray Train, torchrun and bare Ray, on an otherwise quiet machine: hours (ARGS="S one": of one row)
	$(BIN)/python tests/bench/peers/bench_peers.py $(ARGS)

bench-guard: setup ## the deterministic costs, against those accepted in tests/bench/guard.json (make test does it, too)
	$(BIN)/python tests/bench/guard.py

soak: setup ## an API server away for a minute; an hour of uneven steps, then one rank stopped and named (SOAK_S=seconds)
	DLJOB_OUTAGE_S=60 $(BIN)/python -m pytest -q -s tests/kube/controller/test_operator_outage.py
	$(BIN)/python -W ignore tests/bench/worker/soak.py

sweep: setup ## the operator killed before and after each of its calls, on a real API server and Ray (ARGS=--resume: go on); a table in build/
	PYTHONPATH=tests/kube $(BIN)/python -W ignore -m sweep --table build/sweep.md $(ARGS)

dist: setup ## wheel, sdist, chart, images and bill of materials, built here into dist/ (ARGS="python chart": of these parts)
	$(BIN)/python release/build.py $(ARGS)

KUBE := PYTHONPATH=tests/kube $(BIN)/python -m cluster

kube-build: setup ## the programs of a Kubernetes cluster, from Go modules: minutes, once
	@$(KUBE) build

kube-up: setup ## a Kubernetes with KubeRay and our CRD (NODE=1: with a real node; FAKE=n: with n fake ones; RUN=folder)
	@$(KUBE) up $(if $(NODE),--node) $(if $(FAKE),--fake $(FAKE)) $(if $(RUN),--run $(RUN))

kube-down: setup ## end what kube-up started (RUN=folder)
	@$(KUBE) down $(if $(RUN),--run $(RUN))

clean: ## remove the environment and every cache
	rm -rf dist .venv .uv .pytest_cache .ruff_cache .hypothesis .import_linter_cache .coverage .site
