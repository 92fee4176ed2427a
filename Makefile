# make bench    set up an environment, then measure (the GPU, or without one the CPU)
# make test     set up an environment, then run the tests; nothing is timed
# make gpu      set up an environment, then all that a GPU has to tell, step by step; BUDGET=SECONDS for it; again goes on
# make reference RUN=FOLDER   copy a run to results/reference and renew the tables of results/README.md
# TORCH_INDEX=URL takes torch from that index: an NVIDIA driver below 580 needs https://download.pytorch.org/whl/cu126
# ARGS goes to pytest, of make gpu to roofline.evidence:  make bench ARGS="tests/benchmarks/test_matmul.py --ffn-tokens 1,4096"

PYTHON ?= python3
VENV ?= .venv
ENV := $(VENV)/.installed$(addprefix -,$(notdir $(TORCH_INDEX)))
NEWEST := .triton-newest
COMPILED := $(addprefix tests/kernels/test_,compiled.py toy.py warpgroup.py) \
	$(addprefix tests/machine/test_,shipped.py static.py planted.py pulls.py)

.PHONY: bench gpu reference test test-triton-newest test-wire lint

bench: $(ENV)
	$(VENV)/bin/python -m pytest --benchmark-only $(ARGS)

gpu: $(ENV)
	$(VENV)/bin/python -m roofline.evidence $(if $(BUDGET),--budget $(BUDGET)) $(ARGS)

reference: $(ENV)
	$(VENV)/bin/python -m roofline.report.references $(RUN)

test: $(ENV)
	$(VENV)/bin/python -m pytest -n 3 --dist worksteal $(ARGS)

# What is compiled for Hopper, again with the newest Triton that was tried laid over the same environment.
test-triton-newest: $(ENV) $(NEWEST)/.installed
	PYTHONPATH=$(NEWEST) $(VENV)/bin/python -m pytest -n 3 --dist worksteal $(COMPILED) $(ARGS)

# Two ranks as two nodes, over a wire of 1 Gbit/s between network namespaces: as root, on a machine that is idle.
test-wire: $(ENV)
	$(VENV)/bin/python -m pytest tests/wire.py $(ARGS)

lint: $(ENV)
	$(VENV)/bin/ruff check
	$(VENV)/bin/ruff format --check

$(ENV): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(if $(TORCH_INDEX),--clear) $(VENV)
	$(if $(TORCH_INDEX),$(VENV)/bin/python -m pip install --quiet -c constraints.txt torch --index-url $(TORCH_INDEX))
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[test]"
	touch $@

$(NEWEST)/.installed: $(ENV) constraints-newest.txt
	rm -rf $(NEWEST)
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --target $(NEWEST) \
		-r constraints-newest.txt
	touch $@
