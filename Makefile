# Two commands do everything on a fresh Debian machine: `make demo` and `make test`.

SHELL := /bin/bash
CACHE := $(or $(TRIMTAB_CACHE),$(HOME)/.cache/trimtab)
ENVIRONMENT := $(CACHE)/env-$(shell (python3 scripts/requirements.py; cat constraints.txt) 2>/dev/null | sha256sum | cut -c1-16)
BIN := .venv/bin
TWO_AT_A_TIME := --numprocesses 2 --dist loadfile
SANDBOX := $(or $(TRIMTAB_SANDBOX_HOME),/var/lib/trimtab-sandbox)

.PHONY: help environment demo test test-fast test-image test-accelerator lint format chart bench clean

help:
	@echo "make demo        a damaged training run on a real one-node cluster: seen, rolled back, skipped past, audited"
	@echo "make test        all tests, with real Kubernetes, Redis and S3 (30 to 40 minutes on two cores)"
	@echo "make test-fast   the tests that need no cluster"
	@echo "make test-image  build and run the trainer image (slow, 20 GB of disk on the way)"
	@echo "make test-accelerator  hold the kernels of this machine's GPU against float64"
	@echo "make lint        ruff, pyright, import-linter"
	@echo "make bench       measure, and write benchmarks/RESULTS.md"
	@echo "make clean       take the sandbox down and remove what this checkout made; $(CACHE) stays"

environment: .venv/.made
	@[ -e "$(ENVIRONMENT)/.complete" ] || scripts/environment.sh "$(ENVIRONMENT)" .venv

.venv/.made: constraints.txt pyproject.toml scripts/environment.sh scripts/requirements.py
	@scripts/environment.sh "$(ENVIRONMENT)" .venv
	@touch $@

demo: environment
	@$(BIN)/trimtab demo

# Two at a time where each test has servers of its own, one after the other on the one node; both parts in any case.
test: environment
	@failed=0; \
	$(BIN)/python -m pytest $(TWO_AT_A_TIME) -m "not node and not image and not accelerator" --durations=15 || failed=1; \
	$(BIN)/python -m pytest -m "node and not image" --durations=25 || failed=1; \
	exit $$failed

test-fast: environment
	@$(BIN)/python -m pytest $(TWO_AT_A_TIME) -m "not node and not image and not accelerator" --durations=10

test-image: environment
	@$(BIN)/python -m pytest -m image --durations=5

test-accelerator: environment
	@$(BIN)/python -m pytest -m accelerator

lint: environment
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/pyright --pythonpath "$(ENVIRONMENT)/bin/python"
	@$(BIN)/lint-imports

format: environment
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

chart: environment
	@$(BIN)/python -m trimtab_operator.resources helm/trimtab/files/crds
	@mkdir -p helm/trimtab/files/policies
	@mkdir -p cli/trimtab_cli/policies
	@cp policies/library/default.yaml cli/trimtab_cli/policies/
	@for file in policies/library/*.yaml; do case $$file in *.test.yaml) ;; *) cp $$file helm/trimtab/files/policies/;; esac; done

bench: environment
	@$(BIN)/python -m benchmarks

clean:
	@if [ -x $(BIN)/trimtab ]; then $(BIN)/trimtab sandbox down; elif [ -d "$(SANDBOX)" ]; then \
	  echo "a sandbox may be up in $(SANDBOX), and what takes it down is gone: make environment clean" >&2; exit 1; fi
	@rm -rf build .venv .pytest_cache .ruff_cache .hypothesis .import_linter_cache
