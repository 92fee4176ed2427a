# make bench    set up an environment, then measure (the GPU, or without one the CPU)
# make test     set up an environment, then run the tests; nothing is timed
# make test-slow   the slow tests: whole tables, fp16, more orders of events, four ranks
# make gpu      set up an environment, then all that a GPU has to tell, step by step; BUDGET=SECONDS for it; again goes on
# SYSTEM=1 takes python3 as it is, where nothing of ours can be installed:  make gpu SYSTEM=1 PYTHON=/opt/conda/bin/python3
# make reference RUN=FOLDER   copy a run to results/reference and renew the tables of results/README.md
# TORCH_INDEX=URL takes torch from that index: an NVIDIA driver below 580 needs https://download.pytorch.org/whl/cu126
# ARGS goes to pytest:  make bench ARGS="tests/benchmarks/test_matmul.py --ffn-tokens 1,4096"

PYTHON ?= python3
VENV ?= .venv
CONSTRAINTS ?= constraints.txt
INSTALLED := $(VENV)/.installed$(addprefix -,$(notdir $(TORCH_INDEX)))
ENV := $(if $(SYSTEM),,$(INSTALLED))
PY := $(if $(SYSTEM),$(PYTHON),$(VENV)/bin/python)
NEWEST := .triton-newest
COMPILED := $(addprefix tests/kernels/test_,compiled.py toy.py warpgroup.py) \
	$(addprefix tests/machine/test_,attention.py check.py clean.py exhibits.py planted.py shipped.py small_kernels.py)

.PHONY: bench gpu reference test test-slow test-newest test-triton-newest test-wire lint

bench: $(ENV)
	$(PY) -m pytest --benchmark-only $(ARGS)

# The steps of `make gpu`, in this order: what may hang first and alone, then what is right, then what is fast. Each has
# its estimate and its limit in seconds, and is done once its stamp is there. To do one again, remove its stamp.
GPU ?= results/local/gpu
PARTS := $(addprefix $(GPU)/correct-,persistent kernels machine waiting rest)
STEPS := $(addprefix $(GPU)/,doctor warpgroup) $(PARTS) $(addprefix $(GPU)/,tune matmuls gathers layers attention steps counters)
TESTS = $(PY) -m pytest -q -m gpu
# M, N and K of the layers of `xxl` at tp 8, which the tuning is of.
TUNED := $(foreach m,256 1024 4096 8192,$(m),6656,16384 $(m),16384,6656)
# $(call run,STEP): the newest run of a step; $(call measure,STEP,OPTIONS): begin one, or go on with it.
run = $(shell ls -d $(GPU)/runs/$(1)/*/ 2> /dev/null | tail -n 1)
measure = $(PY) -m pytest --benchmark-only $(if $(call run,$(1)),--ffn-resume=$(call run,$(1)),\
	--ffn-device=cuda --ffn-results=$(GPU)/runs/$(1) $(2))
# That of the environment does not count, only that which the parts of `correct` are given.
export DEADLINE := $(shell expr $$(date +%s) + $(or $(BUDGET),1000000000))

gpu: $(filter-out $(PARTS),$(STEPS))
	@left=; for step in $(STEPS); do [ -e $$step ] || left="$$left $${step##*/}"; done; \
	if [ "$$left" ]; then echo "left:$$left; give this command again"; exit 3; fi
	@git diff --quiet HEAD -- kernels 2> /dev/null; [ $$? != 1 ] || \
		echo "commit kernels: what was measured by a table that is not committed cannot become a reference"
	@! grep -vx 0 $(STEPS)

$(GPU)/doctor: | $(ENV)
	@$(PY) -c "import roofline.measure.machine as here; here.gpu_driver() or exit('no NVIDIA GPU: make bench measures the CPU')"
	.ci/step $@ 15 600 $(PY) -m roofline doctor
	@[ ! -e $@ ] || grep -qx 0 $@ || (echo "mend what it says and remove $@, or go on: give this command again"; exit 1)

$(GPU)/warpgroup: | $(GPU)/doctor
	.ci/step $@ 90 300 $(TESTS) tests/kernels/test_matmul.py -k warpgroup

$(GPU)/correct-persistent:
	.ci/step $@ 420 600 $(TESTS) tests/kernels/test_matmul.py -k persistent

$(GPU)/correct-kernels:
	.ci/step $@ 420 600 $(TESTS) tests/kernels/test_matmul.py -k "not warpgroup and not persistent"

$(GPU)/correct-machine:
	.ci/step $@ 420 600 $(PY) -m kernels.machine --gpu --thorough

$(GPU)/correct-waiting:
	.ci/step $@ 420 600 $(TESTS) tests/collectives

$(GPU)/correct-rest:
	.ci/step $@ 420 600 $(TESTS) $(patsubst %,tests/kernels/test_%.py,attention decode workspace instruments) \
		tests/benchmarks tests/roofline/test_faults.py

# Its parts disturb no measurement, and run at once.
$(GPU)/correct: | $(GPU)/warpgroup
	+$(MAKE) --no-print-directory -j 5 DEADLINE=$(DEADLINE) $(PARTS)

$(GPU)/tune: | $(GPU)/correct
	.ci/step $@ 240 600 $(PY) -m kernels.tune persistent --shapes $(TUNED)

$(GPU)/matmuls: | $(GPU)/tune
	.ci/step $@ 330 600 $(call measure,matmuls,-k "test_matmul and not scatter")

$(GPU)/gathers: | $(GPU)/matmuls
	.ci/step $@ 480 600 $(call measure,gathers,-k "gather or scatter or prefetch")

$(GPU)/layers: | $(GPU)/gathers
	.ci/step $@ 100 600 $(call measure,layers,-k test_ffn)

$(GPU)/attention: | $(GPU)/layers
	.ci/step $@ 480 600 $(call measure,attention,-k test_attention)

$(GPU)/steps: | $(GPU)/attention
	.ci/step $@ 300 600 $(call measure,steps,-k "test_transformer_step and l12")

$(GPU)/counters: | $(GPU)/steps
	.ci/step $@ 540 600 $(PY) -m pytest --benchmark-only --ffn-resume=$(or $(call run,matmuls),RUN) --ffn-counters=48

reference: $(ENV)
	$(PY) -m roofline.report.references $(RUN)

test: $(ENV)
	$(PY) -m pytest -n 3 --dist worksteal $(ARGS)

# What a test run leaves out. `.ci/slow` runs it for what was touched.
test-slow: $(ENV)
	$(PY) -m pytest -n 3 --dist worksteal -m slow $(ARGS)

# The tests with the newest packages that pyproject.toml admits, in an environment of their own.
test-newest:
	$(MAKE) test VENV=.venv-newest CONSTRAINTS=/dev/null

# What is compiled for Hopper, again with the newest Triton that was tried laid over the same environment.
test-triton-newest: $(ENV) $(NEWEST)/.installed
	PYTHONPATH=$(NEWEST) $(PY) -m pytest -n 3 --dist worksteal $(COMPILED) $(ARGS)

# Two ranks as two nodes, over a wire of 1 Gbit/s between network namespaces: as root, on a machine that is idle.
test-wire: $(ENV)
	$(PY) -m pytest tests/wire.py $(ARGS)

lint: $(ENV)
	$(PY) -m ruff check
	$(PY) -m ruff format --check

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
