# Targets: `server` (the default), `runtime` (the server without a model) and `export` (attendant-model with PyTorch).
# Build arguments: BASE, TARGET (cpu or gpu), MODEL (its directory), MODEL_DIGEST, VERSION, REVISION. deploy/README.md has
# the commands.
#
# checkov:skip=CKV_DOCKER_2:Kubernetes probes the admin port, and compose.yaml has a health check
# checkov:skip=CKV_DOCKER_7:the default of BASE has a digest, which checkov does not see in a build argument

ARG BASE=python:3.11-slim-bookworm@sha256:a36c24f9cbdf4fd0f52d67f0823eeac19c2028c637cecc392d97f980d4fec56b

# pip stays in /build and installs into /opt/attendant, which the images copy.
FROM ${BASE} AS build
# 1 takes every wheel from deploy/wheelhouse, for a build without a network.
ARG PIP_NO_INDEX=
ARG PIP_EXTRA_INDEX_URL=
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_FIND_LINKS=/wheelhouse PYTHONDONTWRITEBYTECODE=1
COPY deploy/wheelhouse /wheelhouse
COPY deploy/locks/build.txt /locks/
RUN python3 -m venv /build && \
    /build/bin/pip install --quiet --require-hashes --only-binary=:all: -r /locks/build.txt && \
    python3 -m venv --without-pip /opt/attendant

# Dependencies come before the source: they are large and change rarely.
FROM build AS server-packages
ARG TARGET=cpu
COPY deploy/locks/${TARGET}.txt /locks/
RUN /build/bin/pip --python /opt/attendant/bin/python install --quiet --require-hashes --only-binary=:all: \
      -r "/locks/${TARGET}.txt"

FROM build AS export-packages
COPY deploy/locks/export.txt /locks/
RUN /build/bin/pip --python /opt/attendant/bin/python install --quiet --require-hashes --only-binary=:all: \
      -r /locks/export.txt

FROM build AS source
WORKDIR /source
COPY pyproject.toml README.md LICENSE NOTICE ./
COPY client client
COPY model model
COPY service service
ARG REVISION=unknown
RUN printf '%s\n' "${REVISION}" > service/REVISION
RUN /build/bin/pip wheel --quiet --no-deps --no-build-isolation --wheel-dir /wheels . ./client && \
    /build/bin/pip --python /opt/attendant/bin/python install --quiet --no-index --no-deps \
      --prefix /layer/opt/attendant /wheels/attendant_*.whl

# The base without its own installers.
FROM ${BASE} AS base
RUN rm -rf /usr/local/lib/python3*/site-packages/pip* /usr/local/lib/python3*/site-packages/setuptools* \
      /usr/local/lib/python3*/site-packages/wheel* /usr/local/bin/pip* /usr/local/bin/wheel \
      /usr/lib/python3*/ensurepip /usr/local/lib/python3*/ensurepip /usr/share/python-wheels && \
    groupadd --gid 10001 attendant && \
    useradd --uid 10001 --gid 10001 --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin attendant
ENV PATH=/opt/attendant/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="Attendant" \
      org.opencontainers.image.description="Server of contextual embeddings and attention maps" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
USER 10001:10001
STOPSIGNAL SIGTERM

FROM base AS export
COPY --from=export-packages /opt/attendant /opt/attendant
COPY --from=source /layer/ /
ENV HF_HOME=/tmp/huggingface
WORKDIR /artifacts
ENTRYPOINT ["attendant-model"]
CMD ["--help"]

FROM base AS runtime
COPY --from=server-packages /opt/attendant /opt/attendant
COPY --from=source /layer/ /
# glibc's default of eight arenas per core keeps freed memory in each of them.
ENV MALLOC_ARENA_MAX=2 \
    ATTENDANT_HOST=0.0.0.0 \
    ATTENDANT_ADMIN_HOST=0.0.0.0 \
    ATTENDANT_MODEL_DIR=/models/model
WORKDIR /
EXPOSE 8080 8081 8082
ENTRYPOINT ["attendant"]
CMD ["serve"]

FROM runtime AS server
ARG MODEL=models/all-MiniLM-L6-v2
ARG MODEL_DIGEST=unknown
COPY ${MODEL} /models/model
# On a GPU, the server would exit without a graph for CUDA.
ARG TARGET=cpu
RUN python3 -c "import json, sys; \
      graphs = json.load(open('/models/model/manifest.json'))['graphs']; \
      missing = '${TARGET}' == 'gpu' and 'cuda' not in graphs; \
      sys.exit('MODEL: no graph for CUDA. Export the model with --variant cuda and set MODEL.' if missing else 0)"
LABEL org.attendant.model.digest="${MODEL_DIGEST}"
