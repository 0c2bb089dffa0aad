"""Client for Attendant: contextual embeddings and attention maps as numpy arrays, over gRPC or HTTP.

Names are imported on first use: the server shares the types of this package, but not its HTTP client.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attendant_client.aio import AsyncClient
    from attendant_client.client import Client
    from attendant_client.connections import TlsFiles
    from attendant_client.errors import AttendantError
    from attendant_client.retries import RetryPolicy
    from attendant_client.types import *

__version__ = "0.1.0"

_MODULES = {
    "AsyncClient": "aio",
    "AttendantError": "errors",
    "Client": "client",
    "RetryPolicy": "retries",
    "TlsFiles": "connections",
}
"""The modules of names that `types` does not define."""

__all__ = [
    "AsyncClient",
    "AttendResponse",
    "AttendResult",
    "AttendantError",
    "AttentionMap",
    "Chunk",
    "ChunkOptions",
    "ClassifyResponse",
    "ClassifyResult",
    "Client",
    "CompareResponse",
    "ContributionRest",
    "Contributor",
    "DataFileRecord",
    "EncodeResponse",
    "EncodeResult",
    "Entity",
    "EvaluationRecord",
    "FillMaskResponse",
    "FillMaskResult",
    "FilledPosition",
    "Input",
    "Label",
    "LayerOutputs",
    "LayerPredictions",
    "LayerSimilarity",
    "LayerStructure",
    "Limits",
    "ModelInfo",
    "MultiVectorInfo",
    "MultiVectorSide",
    "Occurrence",
    "OccurrenceResult",
    "Prediction",
    "QueryExpansion",
    "RankExplanation",
    "RankedDocument",
    "RerankResponse",
    "RetryPolicy",
    "SharedEntry",
    "SimilarityPair",
    "SimilarityResponse",
    "SimilarityText",
    "SparseInfo",
    "SparseMatrix",
    "SparseVector",
    "TlsFiles",
    "Token",
    "TokenClassifyResponse",
    "TokenClassifyResult",
    "TokenMatch",
    "TokenizeResponse",
    "TokenizeResult",
    "TopContributions",
    "TrainingRecord",
    "Unit",
    "Word",
    "required",
]


_SUBMODULES = (
    "aio",
    "client",
    "connections",
    "errors",
    "requests",
    "responses",
    "retries",
    "transports",
    "types",
    "wire",
)


def __getattr__(name: str) -> Any:
    if name in _SUBMODULES:
        return import_module(f"{__name__}.{name}")
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES.get(name, 'types')}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_SUBMODULES})
