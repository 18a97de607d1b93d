# `make` explains itself. Everything runs in .venv, which is built from nothing and reinstalled only when
# pyproject.toml or the constraints change.
PYTHON ?= python3
VENV   := .venv
COMPAT := .venv-compat
OPENCLIP := .venv-openclip
PROJECTS := pyproject.toml world/pyproject.toml paper/pyproject.toml
OTHERS := --editable ./world --editable ./paper
PLAIN := ATEN_CPU_CAPABILITY=default MKL_CBWR=COMPATIBLE ONEDNN_MAX_CPU_ISA=AVX2
export HF_HUB_OFFLINE ?= 1
export OMP_WAIT_POLICY ?= PASSIVE

.DEFAULT_GOAL := help
.PHONY: help install test test-plain test-compat test-openclip test-wheel lint format demo bench bench-gpu docs site clean

help:  ## this text
	@echo "bayesvlm: CLIP and SigLIP that know what they do not know"
	@echo
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(VENV)/.installed  ## run the main job end to end on the embedded world; ends with a report
	@$(VENV)/bin/bayesvlm demo --overwrite

test: $(VENV)/.installed  ## build .venv if need be and run the whole test suite, notebooks among it
	@$(VENV)/bin/python -m pytest -n 2 --dist loadgroup -q --nbmake

test-plain: $(VENV)/.installed  ## core, active learning, search, serving and BayesVLM under the plainest instruction set
	@$(PLAIN) $(VENV)/bin/python -m pytest -n 2 -q tests/core tests/active tests/retrieval tests/safety tests/serving tests/test_*.py

test-compat: $(COMPAT)/.installed test-openclip  ## what touches transformers, on its version 4; and the tests of open_clip
	@$(COMPAT)/bin/python -m pytest -n 2 -q tests/images tests/models tests/artifacts tests/experiments tests/cli \
		tests/fitting tests/safety tests/serving tests/testing tests/world tests/paper/test_cost.py tests/paper/test_lab.py tests/test_*.py

test-openclip: $(OPENCLIP)/.installed  ## what needs torchvision, in an environment with it: the adapter of open_clip, scores as pytorch-ood's
	@$(OPENCLIP)/bin/python -m pytest -q tests/openclip

test-wheel:  ## build the three wheels, install the library alone, then with its extras, and use them
	@$(PYTHON) tests/wheels/check.py

lint: $(VENV)/.installed  ## ruff, mypy (strict on core, evaluation, artifacts, active and BayesVLM), the import contract of the rooms
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/ruff format --check .
	@$(VENV)/bin/mypy
	@$(VENV)/bin/lint-imports --no-logo

format: $(VENV)/.installed  ## put the code in shape
	@$(VENV)/bin/ruff check --fix-only .
	@$(VENV)/bin/ruff format .

bench: $(VENV)/.installed  ## speed: `bayesvlm bench --check`, ours and the textbook form in turns, then the scripts that look closer (by hand, as they take longer: retrieval, near_copies, app)
	@$(VENV)/bin/bayesvlm bench --check || echo "something got slower; going on"
	@$(VENV)/bin/python benchmarks/curvature.py
	@$(VENV)/bin/python benchmarks/posterior.py
	@$(VENV)/bin/python benchmarks/predict.py
	@$(VENV)/bin/python benchmarks/familiarity.py
	@$(VENV)/bin/python benchmarks/encode.py
	@$(VENV)/bin/python benchmarks/photos.py
	@$(VENV)/bin/python benchmarks/stream.py
	@$(VENV)/bin/python benchmarks/evaluate.py
	@$(VENV)/bin/python benchmarks/epig.py
	@$(VENV)/bin/python benchmarks/runtime.py
	@$(VENV)/bin/python benchmarks/pipeline.py
	@$(VENV)/bin/python benchmarks/export.py

bench-gpu:  ## what wants a GPU, with the python that is there and nothing installed: under 8 minutes
	@sh benchmarks/gpu.sh

docs: $(VENV)/.installed  ## draw the figures of docs/ anew (by hand, as they take longer: active, app_ask, captions, duplicates, pairs, retrieval, rounds, scaling, stopping, templates, unknown)
	@$(VENV)/bin/python docs/figures/answer.py
	@$(VENV)/bin/python docs/figures/approximation.py
	@$(VENV)/bin/python docs/figures/concepts.py
	@$(VENV)/bin/python docs/figures/world.py
	@$(VENV)/bin/python docs/figures/probability.py
	@$(VENV)/bin/python docs/figures/thresholds.py
	@$(VENV)/bin/python docs/figures/scale.py

site: $(VENV)/.installed  ## build the site into site/, which is read from a server or from the disk; fails on warnings and dead links
	@NO_MKDOCS_2_WARNING=1 $(VENV)/bin/python -m mkdocs build --strict --quiet
	@echo "the site is site/index.html"

install: $(VENV)/.installed  ## build .venv only

clean:  ## remove the virtual environments and caches
	rm -rf $(VENV) $(COMPAT) $(OPENCLIP) site .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis

$(VENV)/.installed: $(PROJECTS) constraints.txt
	@echo "installing some 150 packages into $(VENV): two to five minutes"
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]' $(OTHERS)
	@touch $@

$(COMPAT)/.installed: $(PROJECTS) constraints-compat.txt
	$(PYTHON) -m venv $(COMPAT)
	$(COMPAT)/bin/python -m pip install --quiet --constraint constraints-compat.txt --editable '.[test]' $(OTHERS)
	@touch $@

$(OPENCLIP)/.installed: $(PROJECTS) constraints-openclip.txt
	$(PYTHON) -m venv $(OPENCLIP)
	$(OPENCLIP)/bin/python -m pip install --quiet --constraint constraints-openclip.txt \
		--editable '.[open-clip]' --editable ./world pytest pytest-timeout pytorch-ood
	@touch $@
