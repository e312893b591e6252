# sottovoce: make demo | test | test-all | check | check-docs | docs | sanitize | clips | clean
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: demo dist try-dist test test-without-torch test-all references check check-docs docs clips clean sanitize

$(VENV)/base: pyproject.toml constraints.txt
	@$(PYTHON) -m venv $(VENV)
	@touch $@

# The kernels need a C++ compiler. Without one their package is installed without its library, and PyTorch runs the models.
$(VENV)/kernels: $(VENV)/base $(shell find kernels -type f)
	@echo "building the kernels, and installing into $(VENV)/: a minute or two"
	@$(PIP) ./kernels > $@.log 2>&1 || { \
		echo "the native kernels were not built (is there a C++ compiler? $@.log): installing PyTorch instead"; \
		$(PIP) --config-settings=wheel.cmake=false ./kernels && $(PIP) torch; }
	@touch $@

$(VENV)/demo: $(VENV)/base $(VENV)/kernels
	@$(PIP) --editable '.[demo]'
	@touch $@

$(VENV)/test: $(VENV)/base $(VENV)/kernels
	$(PIP) --editable '.[test,check]'
	$(BIN)/sottovoce models download base || echo "tests with real weights will skip"
	touch $@

# What long tests need: a browser's driver, Ray, the site, and the references of the parity tests. openai-whisper goes
# without its dependencies: it asks for triton, and all else that it needs is here already. OpenAI's client of the
# second generation lies by itself. Of rapidocr-onnxruntime the weights alone are read, whatever its program asks for.
$(VENV)/test-all: $(VENV)/test
	$(PIP) --editable '.[test,check,reference,long]'
	$(PIP) --no-deps openai-whisper
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --target $(VENV)/openai-2 openai==2.54.0 distro sniffio
	$(PIP) --no-deps --ignore-requires-python rapidocr-onnxruntime==1.4.4 || echo "the example of text lines will skip"
	$(PIP) kenlm || echo "kenlm could not be built: the tests that compare with it will skip"
	$(BIN)/sottovoce models download tiny.en || echo "tests with its weights will skip"
	touch $@

# One process a core, each with one thread; a file's tests stay together, as they share models.
# A process that crashes ends the run: begun anew, it would crash at the same test again, and the run may never end.
# Commands in processes of their own load bytecode, even where the environment says that none is written.
PYTEST := OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest --numprocesses auto --dist loadfile --no-loadscope-reorder --max-worker-restart 0

demo: $(VENV)/demo  ## transcribe the bundled clips with the bundled model, into demo/
	@$(BIN)/python examples/demo.py

test: $(VENV)/test  ## the tests of a change: minutes
	$(PYTEST) -m "not long"

dist: $(VENV)/base  ## wheels of both packages for this machine, into dist/
	rm -rf dist
	SOTTOVOCE_RELEASE=1 $(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir dist . ./kernels

# Neither a compiler nor PyTorch is there: the wheels alone.
try-dist: dist  ## install the wheels into an empty environment, and run commands of the README there
	rm -rf dist/try
	$(PYTHON) -m venv dist/try
	dist/try/bin/python -m pip install --quiet --disable-pip-version-check --only-binary :all: --constraint constraints.txt "$$(ls dist/sottovoce-*.whl)[serve,docx]" dist/sottovoce_kernels-*.whl
	examples/try_dist.sh dist/try/bin

# Of the tests that need no PyTorch, those of what a backend runs beneath.
test-without-torch: try-dist  ## the tests of backends, search and sessions in that environment
	dist/try/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt pytest pytest-xdist pytest-timeout hypothesis jiwer whisper-normalizer
	OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= dist/try/bin/python -m pytest --numprocesses auto --dist loadfile --max-worker-restart 0 -m "not long" \
		tests/contracts tests/runtime tests/kernels tests/decoding tests/streaming tests/offline tests/language tests/real tests/models

test-all: test test-without-torch $(VENV)/test-all  ## those and the long ones, and more drawn examples
	SOTTOVOCE_EXAMPLES=100 $(PYTEST) -m "long or reference or hypothesis" --references live

references: $(VENV)/test-all  ## the outputs of other programs that tests compare with, made anew
	$(BIN)/python -m pytest -q -m reference --references record

check: $(VENV)/test  ## format, lint, types, tests, docs
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(PYTEST) -m "not long"

$(VENV)/docs: $(VENV)/base $(VENV)/kernels
	$(PIP) --editable '.[docs]'
	touch $@

check-docs: $(VENV)/test $(VENV)/docs  ## links, spelling, examples, tables and commands of the pages, and the site
	$(BIN)/python -m pytest -q tests/docs

docs: $(VENV)/docs  ## the documentation site, into site/; fails on a link that leads nowhere
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

sanitize: $(VENV)/test  ## the tests of the native kernels under address and undefined-behaviour sanitizers
	kernels/sanitize.sh $(BIN)/python

clips: $(VENV)/demo  ## make the demo's clips anew (needs espeak-ng, flite and pypinyin)
	$(PIP) pypinyin
	$(BIN)/python examples/make_clips.py

clean:
	rm -rf $(VENV) demo live build dist site
