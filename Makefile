# make bench    set up an environment, then measure (the GPU, or without one the CPU)
# make test     set up an environment, then run the tests; nothing is timed
# make gpu      set up an environment, then all that a GPU has to tell, step by step; BUDGET=SECONDS for it; again goes on
# ARGS goes to pytest, of make gpu to roofline.evidence:  make bench ARGS="tests/benchmarks/test_matmul.py --ffn-tokens 1,4096"

PYTHON ?= python3
VENV ?= .venv
ENV := $(VENV)/.installed
OLD := .triton-3.6
OF_HOST := $(addprefix tests/kernels/test_,candidates.py cheats.py matmul_bench.py tune_bench.py tune_saving.py vendor.py)
OF_TRITON := $(filter-out $(OF_HOST),$(wildcard tests/kernels/test_*.py)) \
	$(addprefix tests/machine/test_,shipped.py static.py planted.py pulls.py) \
	$(addprefix tests/collectives/test_,copier.py device_group_links.py flagged_arms.py flagged_bench.py all_gather_matmul.py)

.PHONY: bench gpu test test-triton-3.6 test-wire lint

bench: $(ENV)
	$(VENV)/bin/python -m pytest --benchmark-only $(ARGS)

gpu: $(ENV)
	$(VENV)/bin/python -m roofline.evidence $(if $(BUDGET),--budget $(BUDGET)) $(ARGS)

test: $(ENV)
	$(VENV)/bin/python -m pytest -n 3 --dist worksteal $(ARGS)

# What Triton compiles or interprets again, with the oldest one that is supported laid over the same environment; not
# what asks how the host times and tunes. Its interpreter needs an older NumPy than its wheel asks for.
test-triton-3.6: $(ENV) $(OLD)/.installed
	PYTHONPATH=$(OLD) $(VENV)/bin/python -m pytest -n 3 --dist worksteal $(OF_TRITON) $(ARGS)

# Two ranks as two nodes, over a wire of 1 Gbit/s between network namespaces: as root, on a machine that is idle.
test-wire: $(ENV)
	$(VENV)/bin/python -m pytest tests/wire.py $(ARGS)

lint: $(ENV)
	$(VENV)/bin/ruff check
	$(VENV)/bin/ruff format --check

$(ENV): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[test]"
	touch $@

$(OLD)/.installed: $(ENV)
	rm -rf $(OLD)
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --target $(OLD) \
		triton==3.6.0 "numpy<2.4"
	touch $@
