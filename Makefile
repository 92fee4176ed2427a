# make bench    set up an environment, then measure (the GPU, or without one the CPU)
# make test     set up an environment, then run the tests; nothing is timed
# make test FOR=kernels/tiled.py   only the tests that use that file
# make test-slow   the slow tests: whole tables, fp16, more orders of events, four ranks
# make test-machine   the tests of the machine's package, which make test leaves out; its slow ones by ARGS="-m slow"
# make gpu MINUTES=8 OUT=FOLDER   a visit to a GPU that ends in time: archives in FOLDER; again, it goes on from these
# make gpu      all that a GPU has to tell
# make pack     what `make gpu` needs on a machine without a network: a stripped Triton and its compile cache, at most 60 MB
# SYSTEM=1 takes python3 as it is, where nothing of ours can be installed:  make gpu SYSTEM=1 PYTHON=/opt/conda/bin/python3
# make against BASE=CHECKOUT   whether another checkout, as of a pull request's base, is faster than this one
# make reference RUN=FOLDER   copy a run to results/reference and renew the tables of results/README.md
# make reports  write report.md of each run of results/reference again, draw README's pictures, or those of RUN=FOLDER too,
#               and renew the tables that show them
# TORCH_INDEX=URL takes torch from that index: an NVIDIA driver below 580 needs https://download.pytorch.org/whl/cu126
# ARGS goes to pytest:  make bench ARGS="tests/benchmarks/test_matmul.py --ffn-tokens 1,4096"

PYTHON ?= python3
VENV ?= .venv
CONSTRAINTS ?= constraints.txt
INSTALLED := $(VENV)/.installed$(addprefix -,$(notdir $(TORCH_INDEX)))
ENV := $(if $(SYSTEM),,$(INSTALLED))
PY := $(if $(SYSTEM),$(PYTHON),$(VENV)/bin/python)
NEWEST := .triton-newest
BEGAN := $(shell date +%s)
XDIST := -n auto --maxprocesses 8 --dist worksteal
COMPILED := $(addprefix tests/kernels/test_,compiled.py warpgroup.py) \
	$(addprefix tests/machine/test_,planted.py shipped.py) $(wildcard tests/attention/test_attention_compiled.py) \
	$(addprefix kernels/machine/tests/test_,check.py clean.py exhibits.py package.py tma_kernels.py)

# Else each process of tests compiles all files again and rewrites their asserts, which takes ten seconds.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: bench against gpu pack reference reports test test-slow test-machine test-newest test-triton-newest test-wire lint

bench: $(ENV)
	$(PY) -m pytest --benchmark-only $(ARGS)

# Runs of this checkout and of BASE by turns, N a side, then what became slower. ARGS goes to both sides' pytest.
N ?= 3
against: $(ENV)
	$(PY) -m results.against "$(BASE)" "$(N)" $(ARGS)

# All that a GPU has to tell, in the order of its worth, or what of it fits into MINUTES: results/visit.py has the table.
# Archives go to OUT, and come from there: the same command goes on.
OUT ?= results/local/gpu
gpu: $(ENV)
	$(PY) -m results.visit --out $(OUT) $(if $(MINUTES),--minutes $(MINUTES)) --began $(BEGAN)

# For a machine without a network: the newest Triton that was tried, or TRITON=VERSION, stripped, and its cache filled
# ahead. Both are made under the Python of that machine.
PACK_PYTHON ?= python3.12
PACK_VENV ?= .venv-pack
pack: OUT := $(if $(filter file,$(origin OUT)),results/local/pack,$(OUT))
pack:
	$(MAKE) $(PACK_VENV)/.installed PYTHON=$(PACK_PYTHON) VENV=$(PACK_VENV)
	$(PACK_VENV)/bin/python -m results.pack --out $(OUT) $(if $(TRITON),--triton $(TRITON))

reference: $(ENV)
	$(PY) -m results.references $(RUN)

reports: $(ENV)
	$(PY) -m results.references --reports $(RUN)

# FOR=PATH runs those alone that use that file: tests/covering.py finds them.
test: $(ENV)
	$(PY) -m pytest $(XDIST) $(if $(FOR),$$($(PY) -m tests.covering $(FOR))) $(ARGS)

# What a test run leaves out. `.ci/slow` runs it for what was touched.
test-slow: $(ENV)
	$(PY) -m pytest -n 3 --dist worksteal -m slow $(ARGS)

# The tests of the package kernels/machine. `.ci/slow` runs all of them where they, the machine or a Triton pin was touched.
test-machine: $(ENV)
	$(PY) -m pytest $(XDIST) kernels/machine/tests $(ARGS)

# The tests with the newest packages that pyproject.toml admits, in an environment of their own.
test-newest:
	$(MAKE) test test-machine VENV=.venv-newest CONSTRAINTS=/dev/null

# What is compiled for Hopper, again with the newest Triton that was tried laid over the same environment.
test-triton-newest: $(ENV) $(NEWEST)/.installed
	PYTHONPATH=$(NEWEST) $(PY) -m pytest -n 3 --dist worksteal $(COMPILED) $(ARGS)

# Two ranks as two nodes, over a wire of 1 Gbit/s between network namespaces: as root, on a machine that is idle.
test-wire: $(ENV)
	$(PY) -m pytest tests/wire.py $(ARGS)

lint: $(ENV)
	$(PY) -m ruff check
	$(PY) -m ruff format --check
	$(PY) -m mypy

$(INSTALLED): pyproject.toml $(CONSTRAINTS)
	$(PYTHON) -m venv $(if $(TORCH_INDEX),--clear) $(VENV)
	$(if $(TORCH_INDEX),$(VENV)/bin/python -m pip install --quiet -c $(CONSTRAINTS) torch --index-url $(TORCH_INDEX))
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check -c $(CONSTRAINTS) -e ".[test]"
	touch $@

$(NEWEST)/.installed: $(ENV) constraints-newest.txt
	rm -rf $(NEWEST)
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --target $(NEWEST) \
		-r constraints-newest.txt
	touch $@
