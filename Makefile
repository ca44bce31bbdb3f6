# `make demo` and `make test` need only Python 3.11 or newer and make.
PYTHON ?= python3
VENV := .venv
NOX := $(VENV)/bin/python -m nox

.PHONY: demo real test test-all test-rest hosts downstream wheel fuzz format matrix patch measure lab write \
	known-files new-releases summary clean

# Real sentences, garbled by a batch and repaired (93 MB of weights); TINY=1: tiny random weights.
demo: $(VENV)/ready
	@$(NOX) -s $(if $(TINY),tiny_demo,demo)

# Two real models in every family that holds them: alone, in batches, through a server (351 MB of
# weights, 2 GB on disk). SET='mlx-vlm 0.5.0': only there; ONLY='--kind float32': see tools/real.py.
real: $(VENV)/ready
	@$(NOX) -s "real$(if $(SET),($(SET)))" -- $(ONLY)

# One Python, two release sets, and a host with a third one.
test: $(VENV)/ready
	@$(VENV)/bin/python tools/run_sessions.py quick

# Two Pythons, seven release sets, four hosts, the browser, and the own tests of two other projects.
test-all: $(VENV)/ready
	@$(VENV)/bin/python tools/run_sessions.py quick rest

# The part of test-all that test leaves out.
test-rest: $(VENV)/ready
	@$(VENV)/bin/python tools/run_sessions.py rest

# Test every host server of tests/hosts in an environment of its own, and the wheel in fresh
# environments (long; large downloads).
hosts: $(VENV)/ready
	@$(NOX) -s hosts installs -- -m "slow or not slow"

# Run other projects' own released tests, without the patches and with them (an hour). One recipe
# only: make downstream RECIPE='mlx-lm 0.31.3'
downstream: $(VENV)/ready
	@$(NOX) -s "downstream$(if $(RECIPE),($(RECIPE)))"

# Build the wheel twice, from two copies of the source, and compare them byte by byte; OUT=FOLDER
# keeps it.
wheel: $(VENV)/ready
	$(VENV)/bin/python tools/check_wheel.py $(OUT)

# Fuzz the reader of model folders for a while; failures are kept in fuzz-failures/.
SECONDS ?= 60
fuzz: $(VENV)/ready
	$(VENV)/bin/python -m tests.fuzz.loader --seconds $(SECONDS)

format: $(VENV)/ready
	$(VENV)/bin/python -m ruff check --fix
	$(VENV)/bin/python -m ruff format

# Measure every patch on every release set that has no evidence yet (long, resumable).
# SET='mlx-lm 0.33.0': only on this new set, and only code that no other set has.
SHARD ?= 1/1
WHICH = $(if $(SET),--distinct --again --set '$(SET)',--shard $(SHARD))
matrix: $(VENV)/ready
	$(VENV)/bin/python tools/measure_matrix.py $(WHICH)

# Start a patch, with files that fail until they are filled in: make patch ID=my-patch AREA=caches
patch: $(VENV)/ready
	@$(VENV)/bin/python tools/new_patch.py "$(ID)" "$(AREA)"

# Measure a patch anew, once for each distinct code of its targets: make measure PATCH=offset-alias.
# ALL=1: then on the other release sets; SET='mlx-lm 0.31.3': only there.
measure: $(VENV)/ready
	@$(VENV)/bin/python tools/measure_matrix.py --patch $(PATCH) \
	  $(if $(SET),--again --set '$(SET)',$(if $(ALL),,--distinct))

# Run the lab on every release set that has no lab evidence yet (hours, resumable); SET as above.
# DEVICE=metal-emulated: the branch that Metal takes, and its kernels' logic, on a CPU.
lab: $(VENV)/ready
	$(VENV)/bin/python tools/measure_lab.py $(WHICH) $(if $(DEVICE),--device $(DEVICE))

# Write the matrix, the generated documents and the README's sample from the evidence; drop that of
# deleted patches.
# TAKE=FOLDER: also from the evidence of the checkouts in it.
write: $(VENV)/ready
	@$(VENV)/bin/python tools/measure_matrix.py --write $(if $(TAKE),--take '$(TAKE)')
	@$(VENV)/bin/python tools/measure_lab.py --write
	@$(VENV)/bin/python tools/write_docs.py
	@$(VENV)/bin/python tools/readme_sample.py

# Write the table by which start-up recognises a release's files without parsing them, for every
# release set.
known-files: $(VENV)/ready
	$(VENV)/bin/python tools/known_files.py

# Add the releases that release_sets.toml does not name yet.
new-releases: $(VENV)/ready
	$(VENV)/bin/python tools/new_releases.py

# What turned red, green or drifted in the sets that were measured since the last commit.
summary: $(VENV)/ready
	@$(VENV)/bin/python tools/new_releases.py --summary

clean:
	rm -rf $(VENV) .nox

$(VENV)/ready: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit("mlx_patches needs Python 3.11 or newer; set PYTHON=python3.x" if sys.version_info < (3, 11) else 0)'
	@$(PYTHON) -m venv $(VENV)
	@$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check "pip>=25.1"
	@$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --editable . --group dev
	@touch $@
