"""The served model as TEI describes it, and the size and duration of a request."""

from dataclasses import dataclass
from typing import Any, Literal, Protocol, Self

from service.engine.engine import PREPARATION_THREADS, Engine
from service.engine.schema.encode import Timing
from service.engine.schema.model import ModelInfo

API = "tei"
"""The label of this API in metrics, over REST and gRPC."""
NANOSECONDS, NANOSECONDS_PER_MS = 1_000_000_000, 1_000_000


class Measured(Protocol):
    """A response of the engine that has run the model."""

    @property
    def token_count(self) -> int: ...
    @property
    def timing(self) -> Timing: ...


@dataclass(frozen=True, slots=True)
class ComputeMetadata:
    """Size and duration of a request; names and units are those of `tei.v1.Metadata`."""

    compute_chars: int
    compute_tokens: int
    total_time_ns: int
    tokenization_time_ns: int
    queue_time_ns: int
    inference_time_ns: int

    @classmethod
    def measure(cls, response: Measured, characters: int, total_s: float) -> Self:
        """Return the metadata of a response to `characters`, `total_s` seconds after the request."""
        timing = response.timing
        seconds = (total_s, timing.tokenize, timing.queue, timing.run - timing.queue)
        return cls(characters, response.token_count, *(int(duration * NANOSECONDS) for duration in seconds))

    def headers(self, info: ModelInfo) -> dict[str, str]:
        """Return TEI's headers, with times in whole milliseconds."""
        total = _milliseconds(self.total_time_ns)
        return {
            "x-compute-type": "gpu" if info.provider == "cuda" else "cpu",
            "x-compute-time": total,
            "x-compute-characters": str(self.compute_chars),
            "x-compute-tokens": str(self.compute_tokens),
            "x-total-time": total,
            "x-tokenization-time": _milliseconds(self.tokenization_time_ns),
            "x-queue-time": _milliseconds(self.queue_time_ns),
            "x-inference-time": _milliseconds(self.inference_time_ns),
        }


def _milliseconds(nanoseconds: int) -> str:
    return str(nanoseconds // NANOSECONDS_PER_MS)


def describe_model(engine: Engine) -> dict[str, Any]:
    """Return the response of /info."""
    info = engine.info
    return {
        "model_id": info.source,
        "model_sha": info.revision,
        "model_dtype": info.precision,
        "served_model_name": info.name,
        "model_type": _describe_type(engine),
        "max_concurrent_requests": info.limits.max_connections,
        "max_input_length": info.max_input_tokens,
        "max_batch_tokens": engine.max_batch_tokens,
        "max_batch_requests": None,
        "max_client_batch_size": info.limits.max_inputs,
        "auto_truncate": True,
        "tokenization_workers": PREPARATION_THREADS,
        "version": info.version,
        "sha": None,
        "docker_label": None,
    }


def model_type(engine: Engine) -> Literal["embedding", "reranker", "classifier"]:
    """Return the kind of the model, which selects what POST / does."""
    labels = len(engine.info.labels)
    return "embedding" if labels == 0 else "reranker" if labels == 1 else "classifier"


def _describe_type(engine: Engine) -> dict[str, Any]:
    """Return TEI's description of a cross-encoder, of a classifier, or of an embedding model."""
    info, sparse = engine.info, engine.manifest.sparse
    if not info.labels:
        is_splade = sparse is not None and sparse.decoder is not None
        pooling = "last_token" if info.pooling == "last" else info.pooling
        return {"embedding": {"pooling": "splade" if is_splade else pooling}}
    numbers = {label: number for number, label in enumerate(info.labels)}
    described = {"id2label": {str(number): label for label, number in numbers.items()}, "label2id": numbers}
    return {model_type(engine): described}
