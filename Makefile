# Everything a developer does here. `make help` lists it.
SHELL := /bin/bash
.DEFAULT_GOAL := help
PYTHON ?= python3
# Tests start hundreds of processes: without compiled modules each would compile all that it imports.
unexport PYTHONDONTWRITEBYTECODE
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DOCS_STAMP := $(VENV)/.docs-installed
SPHINX := $(BIN)/sphinx-build -c docs -d build/doctrees --fail-on-warning --keep-going --quiet

.PHONY: help setup demo up down test test-all test-unit test-faults test-long test-kai test-kubernetes test-scheduler-conformance test-wheel test-node test-gpu storm test-upgrade simulate simulate-stories mutants soak check docs verify generate bench bench-bind bench-binders bench-costs bench-admission bench-scheduler bench-beside recording lock wheel image release clean

help: ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk 'BEGIN {FS = ":.*## "} {printf "  make %-17s %s\n", $$1, $$2}'

setup: $(STAMP) ## Install everything into .venv, by the locked hashes

$(STAMP): requirements/dev.txt pyproject.toml examples/plugins/pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Bowline needs Python 3.11 or newer; set PYTHON=..." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes --requirement requirements/dev.txt
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable . --editable examples/plugins
	@touch $(STAMP)

demo: setup ## Show each step on a real control plane, then end it
	$(BIN)/python -m bowline.localcluster demo

up: setup ## Start a local cluster with Bowline installed; NODE=1 with a real node (root)
	$(BIN)/python -m $(if $(NODE),tests.localnode,bowline.localcluster) up

down: ## Stop it and remove what it left
	@if test -x $(BIN)/python; then $(BIN)/python -m bowline.localcluster down; else echo "nothing was set up here"; fi

test: setup ## Run the tests, against a real control plane; of the crash matrix a part
	$(BIN)/python -m bowline.localcluster assets
	$(BIN)/python -m pytest --numprocesses=$(or $(WORKERS),3) --dist=loadfile --no-loadscope-reorder

test-all: setup ## What a release runs, for hours; results go into docs/testing.md. PARTS="kai node" runs some
	$(BIN)/python -m tests.all $(PARTS)

test-unit: setup ## Run the tests that need no binaries, in half a minute
	$(BIN)/python -m pytest --numprocesses=auto -m "not live" tests/unit shared

test-faults: setup ## The whole crash matrix: kill -9 at every write of a share
	$(BIN)/python -m bowline.localcluster assets
	$(BIN)/python -m pytest tests/faults -m faults -s

test-long: setup ## What takes minutes on a control plane of its own
	$(BIN)/python -m bowline.localcluster assets
	$(BIN)/python -m pytest tests -m long

test-kai: setup ## KAI-Scheduler decides, the pair carries out: its real scheduler and podgrouper, built with Go
	$(BIN)/python -m bowline.localcluster assets --kai
	$(BIN)/python -m pytest tests/kai -m kai

test-kubernetes: setup ## The suites that depend on Kubernetes' version: VERSION=1.37 (1.32 to 1.37)
	BOWLINE_KUBERNETES=$(VERSION) $(BIN)/python -m bowline.localcluster assets --scheduler
	BOWLINE_KUBERNETES=$(VERSION) $(BIN)/python -m pytest --numprocesses=2 --dist=loadfile --no-loadscope-reorder tests/kube tests/api tests/plugins tests/pair tests/chart/test_objects_live.py

test-scheduler-conformance: setup ## The example scheduler, and those with a mistake, in the cases of schedulers; SCHEDULER="python my.py" NAME=mine, or SCHEDULER=kai
	$(BIN)/python -m bowline.localcluster assets $(if $(filter kai,$(SCHEDULER)),--kai)
	$(if $(SCHEDULER),BOWLINE_SCHEDULER="$(SCHEDULER)" BOWLINE_SCHEDULER_NAME=$(or $(NAME),example-scheduler)) $(BIN)/python -m pytest tests/scheduler_conformance -m 'schedulers or live' --verbose

test-wheel: setup ## The wheel in an environment of its own: a new plugin's types, tests, and a pod that it binds
	$(BIN)/python -m bowline.localcluster assets
	$(BIN)/python -m pytest tests/wheel -m 'author or live' --verbose

test-node: setup ## Run the chart, shares and failures on a real kubelet and containerd (root)
	$(BIN)/python -m tests.localnode assets
	BOWLINE_NODE_PODS=$${BOWLINE_NODE_PODS:-200} $(BIN)/python -m pytest tests/node -m node --verbose

test-gpu: setup ## Two shares of a physical GPU run CUDA at once; without a GPU only the agent's missing driver
	$(BIN)/python -m bowline.localcluster assets
	$(BIN)/python -m pytest tests/gpu -m gpu --verbose

storm: setup ## Thousands of binds while calls fail and leaders die (PODS=10000)
	$(BIN)/python -m bowline.localcluster assets
	$(BIN)/python -m tests.faults.storm --pods $(or $(PODS),10000)

test-upgrade: setup ## Upgrade from the previous version and roll back under load, with the processes of both
	$(BIN)/python -m bowline.localcluster assets
	$(BIN)/python -m pytest tests/upgrade -m upgrade

simulate: setup ## Simulated reconcilers: SECONDS=60 of new seeds; SEED= FOCUS=, or SCENE=, replays one
	$(BIN)/python -m tests.simulation $(if $(SCENE),replay --scene "$(SCENE)",$(if $(SEED),replay --seed $(SEED) --focus $(or $(FOCUS),general),seeds --lines --seconds $(or $(SECONDS),60) $(if $(FOCUS),--focus $(FOCUS))))

simulate-stories: setup ## Every fault at every request of every simulated story; PART=3/20 runs the third twentieth
	$(BIN)/python -m tests.simulation stories $(if $(KINDS),--kinds $(KINDS)) $(if $(PART),--part $(PART))

mutants: setup ## Put each of some 200 defects into a copy of the product (hours): a suite must find it; ONLY=NAMES, SUITES=unit,live,simulation
	$(BIN)/python -m bowline.localcluster assets
	$(BIN)/python -m tests.mutants run $(if $(ONLY),--only $(ONLY)) $(if $(SUITES),--suites $(SUITES))

soak: setup ## 50,000 requests through one reconciler process: its memory and CPU time stay flat
	$(BIN)/python -m bowline.localcluster assets
	$(BIN)/python -m tests.benchmarks soak

check: setup $(DOCS_STAMP) ## Lint, types, import contracts, documents and their links
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(SPHINX) -b dummy . build/docs-check

$(DOCS_STAMP): $(STAMP) requirements/docs.txt
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes --requirement requirements/docs.txt
	@touch $(DOCS_STAMP)

docs: setup $(DOCS_STAMP) ## Write the documentation site to build/docs
	$(SPHINX) -b html . build/docs
	@echo "build/docs/index.html"

verify: setup ## Check that generated files match their sources
	$(BIN)/python -m tools.generate --check

generate: setup ## Write the generated files: CRD, pod policy, workload kinds, docs/reference.md
	$(BIN)/python -m tools.generate

bench: bench-bind bench-binders bench-costs bench-admission bench-scheduler bench-beside ## Measure; not tests

bench-bind: setup ## Throughput, latency and memory of binding, beside the API server's ceiling
	$(BIN)/python -m bowline.localcluster assets
	$(BIN)/python -m tests.benchmarks bind --record

bench-costs: setup ## Where the time of a drain goes: CPU by process
	$(BIN)/python -m bowline.localcluster assets
	$(BIN)/python -m tests.benchmarks costs --record

recording: setup ## Draw docs/diagrams/demo.svg from a run of the demo; a test compares it with another run
	$(BIN)/python -m tests.examples.recording

bench-binders: setup ## The reconciler beside KAI-Scheduler's binder, built with Go
	$(BIN)/python -m bowline.localcluster assets --kai-peers
	$(BIN)/python -m tests.benchmarks binders --record

bench-admission: setup ## Verdicts a second of the webhook, beside KAI-Scheduler's admission
	$(BIN)/python -m bowline.localcluster assets --kai-peers
	$(BIN)/python -m tests.benchmarks webhooks --record

bench-scheduler: setup ## Pods with a volume or a device each, beside kube-scheduler, built with Go
	$(BIN)/python -m bowline.localcluster assets --scheduler
	$(BIN)/python -m tests.benchmarks scheduler --record

bench-beside: setup ## Changes of the leader, and healthy requests beside those that hang or wait
	$(BIN)/python -m bowline.localcluster assets
	$(BIN)/python -m tests.benchmarks hand-over --record
	$(BIN)/python -m tests.benchmarks beside --record

lock: ## Renew the lock files (needs uv)
	uv pip compile --universal --python-version 3.11 --generate-hashes --no-header --no-annotate pyproject.toml -o requirements/runtime.txt
	uv pip compile --universal --python-version 3.11 --generate-hashes --no-header --no-annotate --extra dev -c requirements/runtime.txt pyproject.toml -o requirements/dev.txt
	printf 'hatchling\n' | uv pip compile --python-platform linux --python-version 3.11 --generate-hashes --no-header --no-annotate -c requirements/dev.txt - -o requirements/build.txt
	uv pip compile --universal --python-version 3.11 --generate-hashes --no-header --no-annotate --extra docs -c requirements/dev.txt pyproject.toml -o requirements/docs.txt

image: setup ## Build the image as an OCI layout in OUT (dist): PYTHON_IMAGE=NAME@sha256:..., PLATFORMS, BUILD_OPTIONS
	$(BIN)/python -m tools.release image --base "$(PYTHON_IMAGE)" --out $(or $(OUT),dist) $(if $(PLATFORMS),--platforms $(PLATFORMS)) $(foreach option,$(BUILD_OPTIONS),--option=$(option))

release: setup ## Wheel, chart, image, SBOM, checksums in OUT (dist): VERSION, PYTHON_IMAGE; REGISTRY, PLATFORMS, BUILD_OPTIONS
	$(BIN)/python -m tools.release release --version "$(VERSION)" --base "$(PYTHON_IMAGE)" --out $(or $(OUT),dist) $(if $(REGISTRY),--registry $(REGISTRY)) $(if $(PLATFORMS),--platforms $(PLATFORMS)) $(foreach option,$(BUILD_OPTIONS),--option=$(option))

wheel: setup ## Build the wheel that plugin authors install
	$(BIN)/python -m hatchling build -t wheel

clean: down ## Remove what was built here
	rm -rf $(VENV) dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis
