# Everything a checkout needs. `make help` is made of the comments behind each target.
# Needs Python 3.11, a C++ compiler and cmake; the rest is installed into .venv.

PYTHON ?= python3.11
HOROVOD ?= yes
BIN := .venv/bin
SEEDS := 0,1,2,3
DEMO := experiment=demo
# the demo's further day: from the base of each seed, with one slow worker
GO_ON := -m seed=$(SEEDS) 'resume=runs/demo/base-$${seed}' train.days=3 faults=one_slow checkpoint=none \
  tracking.experiment=demo
# leaves out the comparison of each sweep; progress is on standard error
QUIET := > /dev/null
FLAGS := $(if $(filter no,$(HOROVOD)),--no-horovod)

# a run starts hundreds of processes: their bytecode, and that of the tests, is compiled once
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: demo install test test-slow check docs bench curves fuzz audit calibration advise frappe gba-claims prefetch models map tuning mechanism shadowsync switching cpr precision hosts scale soak slurm-cluster screenshots vega ui clean help

demo: install ## install, train a base in sync, go on with a slow worker in sync, async and gba, compare (3 to 5 minutes)
	$(BIN)/gbactl train -m $(DEMO) seed=$(SEEDS) 'run_dir=runs/demo/base-$${seed}' $(QUIET)
	$(BIN)/gbactl train $(GO_ON) 'run_dir=runs/demo/sync-$${seed}' $(QUIET)
	$(BIN)/gbactl switch $(GO_ON) 'run_dir=runs/demo/$${switch.schedule.0.to}-$${seed}' \
	  'switch.schedule=[{at: {day: 2}, to: async}],[{at: {day: 2}, to: gba}]' $(QUIET)
	$(BIN)/gbactl report --experiment demo --round "day 2" --plots runs/demo --format html > runs/demo/report.html
	$(BIN)/gbactl report --experiment demo --round "day 2"
	@echo "The report with its figures is runs/demo/report.html. Type 'make ui' to see every run in MLflow."

install: ## make .venv with everything in it, Horovod too (HOROVOD=no leaves it out); seconds when nothing changed
	@$(PYTHON) -m gbactl.install $(FLAGS)

test: install ## every test that is not marked slow
	$(BIN)/python -m pytest -m "beside and not slow" -n 4 --dist worksteal tests
	$(BIN)/python -m pytest -m "not beside and not slow" tests/integration

test-slow: install ## the tests marked slow: quality gates, wheel, long runs
	$(BIN)/python -m pytest -m "beside and slow" -n 4 --dist worksteal tests
	$(BIN)/python -m pytest -m "slow and not beside and not alone" -n 3 --dist worksteal tests/integration
	$(BIN)/python -m pytest -m "slow and alone" tests/integration

check: install docs ## ruff, mypy --strict, import-linter (which package may import which), and the documentation site
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: install ## build the documentation site into build/site; a broken link or an unknown page is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

bench: install ## the ratios of docs/studies/performance.md, measured here (1.5 hours; the machine should do nothing else)
	$(BIN)/python experiments/performance/run.py --out experiments/performance

fuzz: install ## COUNT=1000000 mutated frames against everything that reads them (a minute or two; SEED=0)
	$(BIN)/python -m tests.fuzz.wire --count $(or $(COUNT),1000000) --seed $(or $(SEED),0)

audit: install ## known holes in what is installed, by pip-audit (asks a service on the network; fails where that knows nothing)
	$(PYTHON) -m venv .venv/audit && .venv/audit/bin/pip install -q pip-audit
	$(BIN)/python -m pip list --format=freeze --exclude-editable | sed 's/+.*//' > .venv/audit/installed.txt
	.venv/audit/bin/pip-audit --strict --disable-pip --no-deps -r .venv/audit/installed.txt

curves: install ## how cost grows with workers, rows, batch and dimension (15 minutes; goes on where it was cut)
	$(BIN)/python experiments/performance/curves.py

calibration: install ## the study in experiments/calibration: measures this machine, which should do nothing else (20 minutes)
	$(BIN)/python experiments/calibration/run.py

advise: install ## the study in experiments/advise: advice against real runs, on a machine that does nothing else (50 minutes)
	$(BIN)/python experiments/advise/run.py

frappe: install ## the study in experiments/frappe: needs GBACTL_DATA=FOLDER with frappe/ in it (15 minutes)
	$(BIN)/gbactl train -m experiment=frappe mode=sync,gba seed=0,1,2
	@{ echo "# Results"; echo; echo "Written by \`make frappe\`. AUC and log loss on the test split."; echo; \
	$(BIN)/gbactl report --experiment frappe --format md; } > experiments/frappe/results.md
	@cat experiments/frappe/results.md

gba-claims: install ## the study in experiments/gba_claims (15 minutes; SIZE=full: more seeds; SIZE=tiny: tries it out)
	$(BIN)/python experiments/study.py experiments/gba_claims/sweep.yaml
	$(BIN)/python experiments/study.py experiments/gba_claims/sweep.yaml --write

models: install ## the study in experiments/models: needs GBACTL_DATA=FOLDER with frappe/ in it (6 hours)
	$(BIN)/python experiments/study.py experiments/models/sweep.yaml
	$(BIN)/python experiments/study.py experiments/models/sweep.yaml --write

prefetch: install ## the study in experiments/prefetch (40 minutes; the machine should do nothing else)
	$(BIN)/python experiments/study.py experiments/prefetch/sweep.yaml
	$(BIN)/python experiments/study.py experiments/prefetch/sweep.yaml --write

map: install ## the study in experiments/map (an hour and a half; SIZE=tiny: tries it out)
	$(BIN)/python experiments/study.py experiments/map/sweep.yaml --only seed=1
	$(BIN)/python experiments/study.py experiments/map/sweep.yaml
	$(BIN)/python experiments/study.py experiments/map/sweep.yaml --write

tuning: install ## the study in experiments/tuning (25 minutes; SIZE=full: more seeds; SIZE=tiny: tries it out)
	$(BIN)/python experiments/tuning/tune.py
	$(BIN)/python experiments/study.py experiments/tuning/sweep.yaml --write

mechanism: install ## the study in experiments/mechanism (25 minutes; SIZE=tiny: tries it out)
	$(BIN)/python experiments/study.py experiments/mechanism/sweep.yaml
	$(BIN)/python experiments/study.py experiments/mechanism/sweep.yaml --write

shadowsync: install ## the study in experiments/shadowsync (two hours; SIZE=full: more seeds of EPS; SIZE=tiny: tries it out)
	$(BIN)/python experiments/study.py experiments/shadowsync/sweep.yaml
	$(BIN)/python experiments/study.py experiments/shadowsync/sweep.yaml --write

switching: install ## the studies in experiments/switching (two hours; SIZE=full: hours; GBACTL_DATA=FOLDER adds Frappe)
	$(BIN)/python experiments/study.py experiments/switching/sweep.yaml
	$(BIN)/python experiments/study.py experiments/switching/sweep.yaml --write

cpr: install ## the study in experiments/cpr (four and a half hours; SIZE=full: hours; SIZE=tiny: tries it out)
	$(BIN)/python experiments/study.py experiments/cpr/sweep.yaml
	$(BIN)/python experiments/study.py experiments/cpr/sweep.yaml --write

precision: install ## the study in experiments/precision (40 minutes; SIZE=full: 80; GBACTL_DATA=FOLDER adds Frappe)
	$(BIN)/python experiments/study.py experiments/precision/sweep.yaml
	$(BIN)/python experiments/study.py experiments/precision/sweep.yaml --write

hosts: install ## the study in experiments/hosts (two hours, on an idle machine; root, iproute2, openssh-server)
	$(BIN)/python experiments/hosts/run.py

scale: install ## the study in experiments/scale (half an hour, on an idle machine; goes on where it was cut)
	$(BIN)/python experiments/study.py experiments/scale/sweep.yaml
	$(BIN)/python experiments/study.py experiments/scale/sweep.yaml --write

soak: install ## trainings in every mode whose processes are killed, for MINUTES=30 (see experiments/soak)
	$(BIN)/python experiments/soak/soak.py --minutes $(or $(MINUTES),30) --seed $(or $(SEED),0)

slurm-cluster: ## a Slurm cluster of two nodes on this machine, until Ctrl-C (as root, with Debian's slurmctld, slurmd, munge)
	$(BIN)/python -m tests.support.slurm_cluster

screenshots: install ## the pictures in docs/assets/screens, of a sweep that it runs (3 to 5 minutes; needs Debian's chromium)
	$(BIN)/python -m tests.support.screenshots docs/assets/screens

vega: install ## gbactl/report/vega.js, which draws the charts of report pages, from the Vega in vl-convert-python
	$(BIN)/python -m tests.support.vega_bundle

ui: install ## open the MLflow UI on the store of this directory
	$(BIN)/gbactl ui

clean: ## remove .venv, builds and caches (runs/ and mlflow.db stay)
	rm -rf .venv build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	rm -f gbactl/kernels/_native*.so
	find gbactl tests experiments -name __pycache__ -type d -prune -exec rm -rf {} +

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
