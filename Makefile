.DEFAULT_GOAL := help
SHELL := /bin/bash
BIN := .venv/bin

# STAGES="chaos soak": only these, for test and test-long.
STAGES ?=

.PHONY: help
help: ## What can be made, a line each
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "%-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: demo
demo: set-up ## Three jobs on a small cluster made on this machine, from nothing, with what they got and why not
	@$(BIN)/railweave demo

.PHONY: test
test: set-up ## The checks, the unit tests and the short end-to-end tests (at most 25 minutes)
	@scripts/stages.sh tests/stages/short.conf $(STAGES)

.PHONY: test-long
test-long: set-up ## What takes long: seeds, chaos, soak, throughput; stages with budgets in tests/stages/long.conf
	@scripts/stages.sh tests/stages/long.conf $(STAGES)

# ARGUMENTS="services/nic/tests -x": what pytest is given, for test-vm.
ARGUMENTS ?= --timeout 300 -k "not 200_runs and not killed_before_any_step" tests/lab/vm services/topology/tests/linux_fabric

.PHONY: test-vm
test-vm: set-up ## Tests in a virtual machine, on a Debian kernel with SR-IOV cards, VLAN bridges and VRFs (root)
	@$(BIN)/python tests/lab/vm/run.py -- $(ARGUMENTS)

.PHONY: check
check: set-up ## Style, types, import layers, generated schemas
	@scripts/check.sh

.PHONY: fmt
fmt: set-up ## Format the tree and mend what the linter can
	@$(BIN)/ruff check --fix --quiet . ; $(BIN)/ruff format .

.PHONY: schemas
schemas: set-up ## Generate the JSON Schemas and the AsyncAPI document from the models
	@$(BIN)/python -m railweave.contracts.generate

.PHONY: bench
bench: set-up ## The benchmarks, each with its table
	@for bench in tests/bench/*.py; do echo "== $$bench"; $(BIN)/python "$$bench" || exit 1; done

.PHONY: chaos
chaos: set-up ## Kill every process at any moment while jobs flow
	@$(BIN)/pytest -m "long or not long" tests/chaos

.PHONY: set-up
set-up: ## .venv with everything pinned, editable parts; as root also ip and ping
	@scripts/setup.sh

.PHONY: lock
lock: set-up ## Pin anew what changed in requirements/*.in
	@scripts/lock.sh

.PHONY: clean
clean: ## Remove what set-up, checks and tests made
	rm -rf .venv .make .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -not -path './.git/*' -prune -exec rm -rf {} +
