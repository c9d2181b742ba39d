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
V2_SYSTEMD := $(if $(filter systemd,$(V2_DRIVER)),--systemd)
V2_SECONDS := 5400
V2_OF_TESTS := 4500
V2_RESULTS := build/v2

# Bytecode is written, whatever the environment says: a server starts in two thirds of the time, and tests start hundreds.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help venv lint types contracts quick unit integration test test-engines test-bounds test-pythons test-v2 chaos soak fuzz demo demo-picture run
.PHONY: networking stress-network bench bench-leads bench-cni bench-building bench-fifty bench-checkpoints bench-user-namespaces bench-exec bench-cpu bench-reads bench-scale bench-streaming bench-logs bench-stats bench-sick bench-hostile bench-http bench-kind
.PHONY: dashboard-recording dashboard-pictures
.PHONY: conformance test-kind kind-image kind-demo docker-on-path kind-on-path
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
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## /{printf "  make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo "  ARGS=... is passed on to pytest, the server or the benchmark; TESTS=integration/pods/test_stop.py is a part of the"
	@echo "  integration tests; PYTHON=... makes .venv"

venv: .venv/.installed ## make or update .venv with pydockershim and its tools

.venv/.installed: pyproject.toml proto/requirements.txt
	@sh integration/node/venv.sh "$(PYTHON)"

lint: venv ## style and format (ruff)
	$(call timed,lint,$(VENV)/ruff check && $(VENV)/ruff format --check)

types: venv ## types (mypy, strict)
	$(call timed,types,$(VENV)/mypy)

contracts: venv ## layers and homes of foreign libraries (import-linter)
	$(call timed,contracts,PYTHONPATH=.venv/contracts $(PY) .venv/contracts/bin/lint-imports)

quick: venv ## unit tests of what has changed against main, and of the pages: at most 90 s, for a run between edits
	@$(PY) -m tests.quick $(ARGS)

unit: venv ## all unit tests, anywhere and without root: 6 to 12 minutes on two processors
	$(call timed,unit tests,$(PY) -m pytest tests -n 2 $(ARGS))

integration: venv ## integration tests on two Docker Engines in namespaces of their own (root)
	$(ISOLATED) $(PY) -m pytest $(TESTS) $(ARGS)

test-bounds: venv ## whether a test fails for each bound of docs/limits.md that is taken out of the code, ARGS="--only spdy"
	$(PY) -m tests.bounds_mutations $(ARGS)

fuzz: venv ## fuzzers over what others can send: ARGS="--seconds N [--seed S] [--only NAME]"
	$(PY) -m tests.fuzz $(ARGS)

test: lint ## all checks and all tests (root)
# While one processor checks types the other makes the bytecode of the tests, which each worker would make for itself, and
# a machine that is new to this downloads engines and plugins.
	@$(PY) -m pytest tests integration --collect-only -qq >.venv/collected & collecting=$$!; \
	$(PY) -m integration.node prepare & preparing=$$!; \
	$(MAKE) --no-print-directory types contracts; checked=$$?; \
	wait $$collecting || { tail -n 50 .venv/collected; checked=1; }; \
	wait $$preparing || checked=1; exit $$checked
	$(PY) -m pytest tests integration $(SIDE_BY_SIDE) $(ARGS)

test-engines: venv ## every integration test on each engine and image store, side by side (root)
	$(PY) -m integration.node engines
	$(PY) -m pytest integration $(SIDE_BY_SIDE) --all-engines $(ARGS)

test-pythons: venv ## unit tests on Python 3.11 to 3.14, as far as there are such, ARGS="--only 3.14 --write" (root)
	$(PY) -m integration.pythons $(ARGS)

test-v2: venv ## pods, stats and limits in an emulated machine with control groups of version 2, V2_DRIVER=cgroupfs for that (root)
	mkdir -p $(V2_RESULTS)
	$(PY) -m integration.vm $(V2_SYSTEMD) --seconds $(V2_SECONDS) --share $(V2_RESULTS) \
		$(ISOLATED) $(V2_SYSTEMD) $(PY) -m pytest $(V2_TESTS) \
		--engine 28 --timeout $(V2_OF_TESTS) --session-timeout $(V2_OF_TESTS) \
		-p integration.outcomes --results /disk/share/results $(ARGS)

test-kind: venv ## the node image for kind: built on Debian packages, booted under systemd, pods in it; BIN=dir: and clusters (root)
	BIN=$(BIN) $(PY) -m integration.kind $(PY) -m pytest integration/kind --engine 28 --timeout 1800 $(ARGS)

docker-on-path:
	$(call on_path,docker)

kind-on-path:
	$(call on_path,docker kind kubectl)

kind-image: docker-on-path venv ## the node image for kind, pydockershim/node: NODE=kindest/node:v1.36.2
	$(PY) -m integration.kind.demo image $(if $(NODE),--node $(NODE)) $(ARGS)

kind-demo: kind-on-path venv ## a cluster of kind on Docker, with a pod of an image built a second before: BIN=where kind is
	$(PY) -m integration.kind.demo run $(if $(NODE),--node $(NODE)) $(if $(BIN),--bin $(BIN)) $(ARGS)

networking: venv ## connections of every example in every direction, ARGS="--write" for docs/networking.md (root)
	$(ISOLATED) $(PY) -m integration.networking.connections $(ARGS)

chaos: venv ## pods come and go while parts of the node fail, ARGS="--minutes N --seed S" (root)
	$(ISOLATED) $(PY) -m integration.chaos $(ARGS)

stress-network: venv ## pods by the hundred while server, plugins and dockerd are killed, ARGS="--pods N --seed S" (root)
	$(ISOLATED) $(PY) -m integration.networking $(ARGS)

conformance: venv ## critest and a kubelet's node, where their binaries are: BIN=dir ARGS="--engine 28 --only exec" (root)
	$(PY) -m integration.conformance.registries
	$(ISOLATED) $(PY) -m integration.conformance --bin "$(BIN)" $(ARGS)

soak: venv ## a long life in short: probes, pods, sessions and restarts of dockerd, ARGS="--scale 0.01" for less (root)
	$(ISOLATED) $(PY) -m integration.soak $(ARGS)

dashboard-recording: venv ## what the dashboard shows of a node at work, asked of a Prometheus, for its pictures (root)
	$(ISOLATED) $(PY) -m integration.dashboard.record

dashboard-pictures: venv ## draw docs/pictures from that, and write docs/dashboard.md
	$(PY) -m integration.dashboard
	$(PY) packaging/generate.py

demo: venv ## set up this machine and run one real pod, step by step (root)
	$(HOST) $(PY) -m integration.demo $(ARGS)

demo-picture: venv ## record the demo as docs/pictures/demo.svg, which README shows (root)
	$(HOST) $(PY) -u -m integration.demo 2>&1 | $(PY) -m integration.demo_picture docs/pictures/demo.svg

run: venv ## set up this machine and keep the server in the foreground (root)
	$(HOST) $(PY) -m integration.demo --serve $(ARGS)

bench: venv ## times of the calls beside the floor of Docker and CNI alone, ARGS="--beside /path/to/containerd" (root)
	$(ISOLATED) --disk $(PY) -m integration.bench $(ARGS)
	$(ISOLATED) --disk $(PY) -m integration.bench.building
	$(ISOLATED) --disk $(PY) -m integration.bench.fifty
	$(ISOLATED) --disk $(PY) -m integration.bench.user_namespaces
	$(ISOLATED) --disk $(PY) -m integration.bench.checkpoints

bench-checkpoints: venv ## pods moved by a checkpoint beside runc's own, ARGS="--rounds N" (root)
	$(ISOLATED) --disk $(PY) -m integration.bench.checkpoints $(ARGS)

bench-user-namespaces: venv ## the start of pods in user namespaces beside others, ARGS="--engine E --rounds N" (root)
	$(ISOLATED) --disk $(PY) -m integration.bench.user_namespaces $(ARGS)

bench-fifty: venv ## a pod of fifty containers beside Docker's own floor, ARGS="--engine E --rounds N" (root)
	$(ISOLATED) --disk $(PY) -m integration.bench.fifty $(ARGS)

bench-building: venv ## a node that builds: calls about images beside Docker's own, ARGS="--engine E --images N" (root)
	$(ISOLATED) --disk $(PY) -m integration.bench.building $(ARGS)

bench-exec: venv ## what an exec costs beside Docker's and runc's, ARGS="--engine E --rounds N" (root)
	$(ISOLATED) --disk $(PY) -m integration.bench.exec $(ARGS)

bench-leads: venv ## times of Docker alone, with and without what could be left out of the start of a pod (root)
	$(ISOLATED) --disk $(PY) -m integration.bench.leads $(ARGS)

bench-cni: venv ## times of ADD and DEL by plugin (root)
	$(ISOLATED) $(PY) -m integration.bench.cni $(ARGS)

bench-cpu: venv ## processor time and memory of our own processes, a pod and an idle node, ARGS="--before DIR" (root)
	$(ISOLATED) --disk $(PY) -m integration.bench.cpu $(ARGS)

bench-streaming: venv ## speed and memory of exec and port-forward beside what was promised (root)
	$(ISOLATED) --disk $(PY) -m integration.bench.streaming $(ARGS)

bench-reads: venv ## times of reads on a full node, and what being asked all the time costs (root)
	$(ISOLATED) --disk $(PY) -m integration.bench.reads $(ARGS)

bench-scale: venv ## a node that grows to 250 pods and 10,000 stopped containers of others: ARGS="--engine E --pods 10 250" (root)
	$(ISOLATED) --disk $(PY) -m integration.bench.scale $(ARGS)

bench-logs: venv ## throughput, delay and memory of the log process (root)
	$(ISOLATED) --disk $(PY) -m integration.bench.logs $(ARGS)

bench-stats: venv ## times and cost of stats and metrics with many pods (root)
	$(ISOLATED) --disk $(PY) -m integration.bench.stats $(ARGS)

bench-http: venv ## what reading Docker's HTTP costs beside h11 and the SDK, in time of the processor
	$(PY) -m integration.bench.http

bench-hostile: venv ## memory and delays that hostile exec sessions cost (root)
	$(ISOLATED) $(PY) -m integration.bench.hostile $(ARGS)

bench-sick: venv ## reads beside many waits, and restarts of a busy node (root)
	$(ISOLATED) --disk $(PY) -m integration.bench.sick $(ARGS)

bench-kind: venv ## a cluster of kind beside one whose pods containerd runs: time and memory, BIN=dir ARGS="--rounds N" (root)
	BIN=$(BIN) $(PY) -m integration.kind $(PY) -m integration.kind.bench $(ARGS)

packages: venv ## what users install, into build/packages: ARGS="wheel deb --machine all" for less or more
	$(PY) -m release $(or $(ARGS),wheel sdist deb pyz $(shell command -v rpmbuild >/dev/null && echo rpm))
	@[ -n "$(ARGS)" ] || command -v rpmbuild >/dev/null || echo "no RPM: rpmbuild is not installed (package rpm on Debian)"

test-packages: venv ## all kinds of packages, also on fresh machines of Debian and Ubuntu, and those for aarch64 emulated (root)
	$(PY) -m integration.packages.fresh.roots
	$(PY) -m integration.packages.aarch64
	$(ISOLATED) $(PY) -m pytest integration/packages --all-packages --timeout 1800 $(ARGS)

release: venv ## everything that is published, built twice and compared, with notes, bill of materials and sums: KEY=signs it
	$(PY) -m release all --machine all --into build/release $(if $(KEY),--key $(KEY))

clean: ## remove what make put into this directory
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis build *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

clean-packages: ## remove the unpacked engines and plugins (/var/cache/pydockershim)
	rm -rf "$${PYDOCKERSHIM_CACHE:-/var/cache/pydockershim}"
