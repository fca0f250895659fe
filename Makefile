# batchline: the verbs, in the order the data flows. Recipes are short; what is longer is a `batchline` command.
PYTHON ?= python3
VENV ?= .venv
CONFIG ?= config.properties
STORE ?= model_store
EXTRAS ?= serve,archive,java,dev
RUNS ?= $(wildcard run-*.json stages-*.json load-*.json plan-*.json verify-*.json sweep-*.json)

BATCHLINE = $(VENV)/bin/batchline
STAMP = $(VENV)/.batchline-setup
TOGETHER = --numprocesses 2 --dist loadfile  # what needs no server; what does has the machine for itself
TRITON = build/bench/venv-triton/bin/python
NAMES := $(patsubst models/%/handler.py,%,$(wildcard models/*/handler.py))
ARCHIVES := $(NAMES:%=$(STORE)/%.mar)
SHIPPED := $(wildcard handlers/*.py) batchline/__init__.py

.DEFAULT_GOAL := help
.PHONY: help setup archive serve status stop measure tune report check test test-unit bench-stock bench-load bench-setup bench bench-tune docs-figures clean
.DELETE_ON_ERROR:
.SECONDEXPANSION:

help:  ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo "  with PYTHON=$(PYTHON) VENV=$(VENV) CONFIG=$(CONFIG) STORE=$(STORE)"

setup: $(STAMP)  ## Make .venv with everything the other verbs use
$(STAMP): setup.py pyproject.toml batchline/inference.proto
	test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet --editable '.[$(EXTRAS)]'
	@touch $@

archive: $(ARCHIVES)  ## Build model_store/*.mar of every folder in models/ that changed
$(STORE)/%.mar: $$(shell find models/$$* -not -path '*/.*' -not -path '*/__pycache__*' | sed 's/ /\\ /g') $(SHIPPED) | $(STAMP)
	$(BATCHLINE) archive $* --store $(STORE)

serve: $(ARCHIVES) $(STAMP)  ## Start TorchServe on loopback; returns when every worker is READY
	$(BATCHLINE) serve --config $(CONFIG) --model-store $(STORE)

status: $(STAMP)  ## Wanted and effective settings, workers, memory, queue
	$(BATCHLINE) status --config $(CONFIG)

stop: $(STAMP)  ## End the TorchServe that `serve` started here
	$(BATCHLINE) stop

measure: $(ARCHIVES) $(STAMP)  ## What a batch of each model costs, on this machine: run-NAME.json
	for name in $(NAMES); do $(BATCHLINE) measure $$name --overwrite || exit; done

tune: $(ARCHIVES) $(STAMP)  ## Settings of MODEL for P99_MS at RATE: measured, planned, tried, written
	$(BATCHLINE) tune $(MODEL) --p99-ms $(P99_MS) --rate-per-s $(RATE) --config $(CONFIG)

report: $(STAMP)  ## Every figure of the run-*.json and other files in RUNS: report/report.html
	$(BATCHLINE) report $(RUNS) -o report

check: $(ARCHIVES) $(STAMP)  ## Format, lint, types, undeclared imports, configuration
	$(VENV)/bin/ruff format --check . && $(VENV)/bin/ruff check .
	$(VENV)/bin/mypy batchline handlers
	$(VENV)/bin/python -c "import importlib.metadata as m; print(*m.requires('batchline'), sep='\n')" | sed 's/;.*//' > build/requirements.txt
	$(VENV)/bin/deptry --requirements-files build/requirements.txt . && $(VENV)/bin/lint-imports
	$(BATCHLINE) check-config $(CONFIG) --model-store $(STORE)
	$(BATCHLINE) check-config deploy/config.properties --model-store $(STORE)

test: $(ARCHIVES) $(STAMP) $(TRITON)  ## Everything, a real TorchServe and a real Triton included
	$(VENV)/bin/pytest tests/unit tests/archive $(TOGETHER)
	$(VENV)/bin/pytest tests/server

test-unit: $(STAMP)  ## The tests that need no server
	$(VENV)/bin/pytest tests/unit $(TOGETHER)

bench-stock: $(ARCHIVES) $(STAMP)  ## The same weights through TorchServe's own handler and ours, in one run
	$(VENV)/bin/python benchmarks/stock.py

bench-load: $(STAMP)  ## How many requests a second the load generator can send on time
	$(VENV)/bin/python benchmarks/load.py

$(TRITON): | $(STAMP)
	$(VENV)/bin/python benchmarks/environments.py triton

bench-setup: $(STAMP)  ## An environment for every server that `bench` compares with (1 GB)
	$(VENV)/bin/python benchmarks/environments.py

bench: $(ARCHIVES) $(STAMP)  ## The three models on other servers, side by side in one run each
	for model in $(NAMES); do $(VENV)/bin/python benchmarks/compare.py --model $$model -o build/bench/results/$$model.json || exit; done

bench-tune: $(ARCHIVES) $(STAMP)  ## Predictions, plans and tuned settings held against a server
	for model in sleep $(NAMES); do $(VENV)/bin/python benchmarks/tune.py --model $$model -o build/bench/results/tune-$$model.json || exit; done

docs-figures: $(STAMP)  ## docs/walkthrough.md and docs/figures/, drawn from results/
	$(VENV)/bin/python benchmarks/docs_figures.py

clean:  ## End the server; remove what the other verbs made, except .venv
	! test -x $(BATCHLINE) || $(BATCHLINE) stop
	rm -rf build dist report .batchline logs $(STORE)/*.mar *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
