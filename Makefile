# Everything a developer or CI runs. Logic lives in integration/node; this file only names it.

PYTHON ?= python3
ARGS   ?=
TESTS  ?= integration
BIN    ?=
VENV   := .venv/bin
PY     := $(VENV)/python
ISOLATED := $(PY) -m integration.node run
HOST   := $(PY) -m integration.node host

# Each of so many pytest workers is isolated. They wait for Docker more than they work, on two processors too.
WORKERS ?= 6
SIDE_BY_SIDE := -p integration.side_by_side --dist loadscope --tx '$(WORKERS)*popen//python=$(ISOLATED) $(PY)'

# A second of theirs takes ten to thirty seconds where nothing helps the emulator. What the time does not suffice for is
# skipped, and the results say so: the machine has to boot before, and to end after. One test may take all of it: the
# first one starts Docker, and would fail for all.
V2_TESTS   := $(addprefix integration/,pods/test_runtime.py pods/test_sandbox.py pods/test_containers.py pods/test_stop.py \
	pods/test_memory_kills.py stats/test_stats.py stats/test_metrics.py fields/test_resources.py fields/test_update.py \
	streaming/test_own_exec.py)
V2_DRIVER  ?= systemd
ifeq ($(filter $(V2_DRIVER),systemd cgroupfs),)
$(error V2_DRIVER=$(V2_DRIVER): it is systemd or cgroupfs)
endif
# Linux 6.1 of Debian 12, or 6.12 of 13 (trixie), which user namespaces need.
V2_KERNEL  ?= bookworm
V2_SYSTEMD := $(if $(filter systemd,$(V2_DRIVER)),--systemd)
V2_SECONDS := 5400
V2_OF_TESTS := 4500
V2_RESULTS := build/v2

# Benchmarks that run alone, by `make bench-NAME`; each takes --help. The benchmarks kind and http have separate rules.
BENCHES := building checkpoints cni cpu exec fifty hostile hundred leads logs nri reads scale sick stats streaming user-namespaces

# Bytecode is written, whatever the environment says: a server starts in two thirds of the time, and tests start hundreds.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help venv lint types contracts quick unit integration test test-engines test-bounds test-pythons test-v2 chaos soak fuzz demo demo-picture run
.PHONY: networking stress-network bench bench-http bench-kind
.PHONY: dashboard-recording dashboard-pictures
.PHONY: conformance conformance-v2 test-kind kind-image kind-demo docker-on-path kind-on-path
.PHONY: clean clean-packages packages release test-packages

# $(call timed,what,command): say what runs and how long it took.
define timed
	@echo "== $(1)"; started=$$(date +%s); $(2) && echo "   $(1): $$(($$(date +%s) - started)) s"
endef

# $(call on_path,programs): end when one of them is missing, before minutes go into .venv.
define on_path
	@PATH="$(if $(BIN),$(BIN):)$$PATH"; for each in $(1); do command -v $$each >/dev/null || missing="$$missing, $$each"; done; \
	[ -z "$$missing" ] || { echo "kind: not on the PATH: $${missing#, } (BIN=directory adds one)" >&2; exit 1; }
endef

help: ## show this table
	@awk -F ':.*## ' '/^[a-z0-9%-]+:.*## /{sub("%", "NAME", $$1); printf "  make %-19s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo "  NAME: http kind $(BENCHES)"
	@echo '  ARGS="..." goes to the program of a target, ARGS=--help shows its options; TESTS=path selects integration tests;'
	@echo '  BIN=dir has programs that the lab lacks; PYTHON=path makes .venv. (root): needs root'

venv: .venv/.installed ## make or update .venv with pydockershim and its tools

.venv/.installed: pyproject.toml proto/requirements.txt
	@sh integration/node/venv.sh "$(PYTHON)"

lint: venv ## style and format (ruff)
	$(call timed,lint,$(VENV)/ruff check && $(VENV)/ruff format --check)

types: venv ## types (mypy, strict)
	$(call timed,types,$(VENV)/mypy)

contracts: venv ## layers and homes of foreign libraries (import-linter)
	$(call timed,contracts,PYTHONPATH=.venv/contracts $(PY) .venv/contracts/bin/lint-imports)

quick: venv ## unit tests of what differs from origin/main, and of the pages; at most 90 s
	@$(PY) -m tests.quick $(ARGS)

unit: venv ## all unit tests, without root; 6 to 12 minutes on two processors
	$(call timed,unit tests,$(PY) -m pytest tests -n 2 $(ARGS))

integration: venv ## integration tests on two Docker Engines in separate namespaces (root)
	$(ISOLATED) $(PY) -m pytest $(TESTS) $(ARGS)

test-bounds: venv ## prove that a test fails for each bound of docs/limits.md that the code drops
	$(PY) -m tests.bounds_mutations $(ARGS)

fuzz: venv ## fuzzers of everything that others send: ARGS="--seconds N --seed S --only NAME"
	$(PY) -m tests.fuzz $(ARGS)

test: lint ## all checks and all tests; 15 to 20 minutes on two processors (root)
# While one processor checks types the other makes the bytecode of the tests, which each worker would make for itself, and
# a machine that is new to this downloads engines and plugins.
	@$(PY) -m pytest tests integration --collect-only -qq >.venv/collected & collecting=$$!; \
	$(PY) -m integration.node prepare & preparing=$$!; \
	$(MAKE) --no-print-directory types contracts; checked=$$?; \
	wait $$collecting || { tail -n 50 .venv/collected; checked=1; }; \
	wait $$preparing || checked=1; exit $$checked
	$(PY) -m pytest tests integration $(SIDE_BY_SIDE) $(ARGS)

test-engines: venv ## integration tests on each engine and image store (root)
	$(PY) -m integration.node engines
	$(PY) -m pytest integration $(SIDE_BY_SIDE) --all-engines $(ARGS)

test-pythons: venv ## unit tests on Python 3.11 to 3.14, as far as they are installed (root)
	$(PY) -m integration.pythons $(ARGS)

test-v2: venv ## tests on cgroup v2 in an emulated machine: V2_DRIVER=cgroupfs (root)
	mkdir -p $(V2_RESULTS)
	$(PY) -m integration.vm $(V2_SYSTEMD) --kernel $(V2_KERNEL) --seconds $(V2_SECONDS) --share $(V2_RESULTS) \
		$(ISOLATED) $(V2_SYSTEMD) $(PY) -m pytest $(V2_TESTS) \
		--engine 28 --timeout $(V2_OF_TESTS) --session-timeout $(V2_OF_TESTS) \
		-p integration.outcomes --results /disk/share/results $(ARGS)

conformance-v2: venv ## critest on cgroup v2 in an emulated machine; each call goes on: BIN=dir (root)
	mkdir -p $(V2_RESULTS)
	$(PY) -m integration.conformance.registries
	$(PY) -m integration.vm $(V2_SYSTEMD) --kernel trixie --seconds $(V2_SECONDS) --share $(V2_RESULTS) \
		$(ISOLATED) $(V2_SYSTEMD) $(PY) -m integration.conformance --bin "$(BIN)" --resume /disk/share/results \
		--seconds $(V2_OF_TESTS) $(ARGS)

test-kind: venv ## the node image for kind, booted under systemd; with BIN=dir, clusters of it (root)
	BIN=$(BIN) $(PY) -m integration.kind $(PY) -m pytest integration/kind --engine 28 --timeout 1800 $(ARGS)

docker-on-path:
	$(call on_path,docker)

kind-on-path:
	$(call on_path,docker kind kubectl)

kind-image: docker-on-path venv ## build the node image for kind: NODE=kindest/node:v1.36.2
	$(PY) -m integration.kind.demo image $(if $(NODE),--node $(NODE)) $(ARGS)

kind-demo: kind-on-path venv ## a cluster of kind whose pod runs an image that Docker has just built: BIN=dir
	$(PY) -m integration.kind.demo run $(if $(NODE),--node $(NODE)) $(if $(BIN),--bin $(BIN)) $(ARGS)

networking: venv ## connections in every direction for every CNI example (root)
	$(ISOLATED) $(PY) -m integration.networking.connections $(ARGS)

chaos: venv ## pods come and go while parts of the node fail: ARGS="--minutes N --seed S" (root)
	$(ISOLATED) $(PY) -m integration.chaos $(ARGS)

stress-network: venv ## hundreds of pods while the server, plugins and dockerd are killed (root)
	$(ISOLATED) $(PY) -m integration.networking $(ARGS)

conformance: venv ## critest, or a node with a kubelet: BIN=dir ARGS="--engine 28 --only exec" (root)
	$(PY) -m integration.conformance.registries
	$(PY) -m integration.conformance.node_e2e.images
	$(ISOLATED) $(PY) -m integration.conformance --bin "$(BIN)" $(ARGS)

soak: venv ## probes, pods, sessions and restarts of dockerd for hours: ARGS="--scale 0.01" (root)
	$(ISOLATED) $(PY) -m integration.soak $(ARGS)

dashboard-recording: venv ## record with Prometheus what the dashboard shows of a busy node (root)
	$(ISOLATED) $(PY) -m integration.dashboard.record

dashboard-pictures: venv ## draw the recording, and write docs/dashboard.md
	$(PY) -m integration.dashboard
	$(PY) packaging/generate.py

demo: venv ## set up this machine and run one real pod, step by step (root)
	$(HOST) $(PY) -m integration.demo $(ARGS)

demo-picture: venv ## record the demo as a picture for README (root)
	$(HOST) $(PY) -u -m integration.demo 2>&1 | $(PY) -m integration.demo_picture docs/pictures/demo.svg

run: venv ## set up this machine and keep the server in the foreground (root)
	$(HOST) $(PY) -m integration.demo --serve $(ARGS)

bench: venv ## the benchmarks with goals: ARGS="--beside /path/to/containerd" (root)
	$(ISOLATED) --disk $(PY) -m integration.bench $(ARGS)
	$(ISOLATED) --disk $(PY) -m integration.bench.building
	$(ISOLATED) --disk $(PY) -m integration.bench.fifty
	$(ISOLATED) --disk $(PY) -m integration.bench.user_namespaces
	$(ISOLATED) --disk $(PY) -m integration.bench.checkpoints

bench-%: venv ## one benchmark (root)
	@[ -n "$(filter $*,$(BENCHES))" ] || { echo "bench-$*: there are http kind $(BENCHES)" >&2; exit 1; }
	$(ISOLATED) --disk $(PY) -m integration.bench.$(subst -,_,$*) $(ARGS)

bench-http: venv
	$(PY) -m integration.bench.http

bench-kind: venv
	BIN=$(BIN) $(PY) -m integration.kind $(PY) -m integration.kind.bench $(ARGS)

packages: venv ## build the packages into build/packages: ARGS="wheel deb --machine all"
	$(PY) -m release $(or $(ARGS),wheel sdist deb pyz $(shell command -v rpmbuild >/dev/null && echo rpm))
	@[ -n "$(ARGS)" ] || command -v rpmbuild >/dev/null || echo "no RPM: rpmbuild is not installed (package rpm on Debian)"

test-packages: venv ## tests of all packages on fresh machines of Debian and Ubuntu (root)
	$(PY) -m integration.packages.fresh.roots
	$(PY) -m integration.packages.aarch64
	$(ISOLATED) $(PY) -m pytest integration/packages --all-packages --timeout 1800 $(ARGS)

release: venv ## build all that is published twice, compare it, and write notes and sums: KEY=id
	$(PY) -m release all --machine all --into build/release $(if $(KEY),--key $(KEY))

clean: ## remove everything that make put into this directory
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis build *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

clean-packages: ## remove the unpacked engines and plugins from /var/cache/pydockershim
	rm -rf "$${PYDOCKERSHIM_CACHE:-/var/cache/pydockershim}"
