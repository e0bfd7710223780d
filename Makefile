# Needs Python 3.11 or newer (with its venv module) and make; everything else is installed into $(VENV).
PYTHON ?= python3
VENV ?= .venv
PAGES_VENV ?= .venv-pages
OLAH_VENV ?= .venv-olah
FIFTYONE_VENV ?= .venv-fiftyone
BIN := $(VENV)/bin
export PIP_RETRIES ?= 5
export PIP_DEFAULT_TIMEOUT ?= 60
# a file stays in one process, since its tests share what was costly to make
PYTEST := $(BIN)/python -m pytest -q -n auto --maxprocesses 4 --dist loadfile
PIP := $(BIN)/python -m pip --disable-pip-version-check install

.PHONY: help demo install install-demo install-pages install-olah install-fiftyone install-gradcam test test-slow test-all test-pages \
	test-olah test-fiftyone test-gradcam lint types clean
.DEFAULT_GOAL := help

help:
	@echo "make demo      install what the demo needs and run it; the report lands in demo-output/"
	@echo "make test      run every test that is not marked slow"
	@echo "make test-all  run the slow tests too (make test-slow runs only those)"
	@echo "make test-pages  the pages of metrics and reviews in a headless browser (gradio needs an older pillow: $(PAGES_VENV))"
	@echo "make test-olah     the real libraries read from a mirror that is not ours (olah, in $(OLAH_VENV))"
	@echo "make test-fiftyone  FiftyOne's own loader reads our export (in $(FIFTYONE_VENV), 1.3 GB)"
	@echo "make test-gradcam  where a component looks, by the package grad-cam"
	@echo "make lint      ruff: rules and format"
	@echo "make types     mypy --strict on the package"
	@echo "make clean     remove $(VENV) and everything that was built"
	@echo "PYTHON=/path/to/python3.12 chooses the interpreter"

demo: install-demo
	$(BIN)/hf-robust demo --out demo-output

install-demo: $(VENV)/.ready-demo
install: $(VENV)/.ready-dev

test: install
	$(PYTEST) -m "not slow"

test-slow: install
	$(PYTEST) -m "slow and not pages"

test-all: install
	$(PYTEST) -m "not pages"

# gradio needs pillow < 13, so the pages have an environment of their own, without torch
install-pages: $(PAGES_VENV)/.ready

$(PAGES_VENV)/.ready: pyproject.toml
	$(PYTHON) -m venv --clear $(PAGES_VENV)
	$(PAGES_VENV)/bin/python -m pip --disable-pip-version-check install -e ".[pages]"
	@touch $@

test-pages: install-pages
	$(PAGES_VENV)/bin/python -m pytest -q tests/test_hub_spaces.py tests/test_review_page.py tests/test_docs_regenerate.py -m pages

# Optional: programs of others, each in an environment of its own; the tests run in $(VENV) and call them there.
install-olah: $(OLAH_VENV)/.ready
install-fiftyone: $(FIFTYONE_VENV)/.ready

$(OLAH_VENV)/.ready: Makefile
	$(PYTHON) -m venv --clear $(OLAH_VENV)
	$(OLAH_VENV)/bin/python -m pip --disable-pip-version-check install "olah>=0.5.4,<0.6"
	@touch $@

$(FIFTYONE_VENV)/.ready: Makefile pyproject.toml
	$(PYTHON) -m venv --clear $(FIFTYONE_VENV)
	$(FIFTYONE_VENV)/bin/python -m pip --disable-pip-version-check install -e ".[fiftyone]" "mongomock>=4.3,<5"
	@touch $@

test-olah: install install-olah
	OLAH_PYTHON=$(abspath $(OLAH_VENV))/bin/python $(BIN)/python -m pytest -q tests/test_olah.py

test-fiftyone: install install-fiftyone
	FIFTYONE_PYTHON=$(abspath $(FIFTYONE_VENV))/bin/python $(BIN)/python -m pytest -q tests/test_fiftyone_loader.py

# grad-cam brings OpenCV along, which needs the libGL of the machine
install-gradcam: install
	$(PIP) -e ".[gradcam]"
	$(BIN)/python -c "import pytorch_grad_cam"

test-gradcam: install-gradcam
	$(BIN)/python -m pytest -q tests/test_gradcam.py

lint: install
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .

types: install
	$(BIN)/python -m mypy

clean:
	rm -rf $(VENV) $(PAGES_VENV) $(OLAH_VENV) $(FIFTYONE_VENV) build dist demo-output *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis

# Stamps vanish before an installation and return after it, so that nothing trusts a half-installed environment; one whose
# installation was killed is made anew. `dev` includes `demo`.
define install_extra
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "hf_robust needs Python 3.11 or newer, but '$(PYTHON)' is $$($(PYTHON) --version 2>&1);" \
	       "name another one: make PYTHON=/path/to/python3.11 ..." >&2; exit 1; }
	@rm -f $(VENV)/.ready-*
	@if [ -e $(VENV)/.unfinished ] || ! $(BIN)/python -m pip --version >/dev/null 2>&1; then \
	  echo "creating $(VENV)"; $(PYTHON) -m venv --clear $(VENV); fi
	@touch $(VENV)/.unfinished
	$(PIP) -e ".[$(1)]" || { rm -f $(VENV)/.unfinished; exit 1; }
	@rm -f $(VENV)/.unfinished
	@touch $(VENV)/.ready-demo $@
endef

$(VENV)/.ready-demo: pyproject.toml
	$(call install_extra,demo)

$(VENV)/.ready-dev: pyproject.toml
	$(call install_extra,dev)
