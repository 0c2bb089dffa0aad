"""Client for Attendant: contextual embeddings and attention maps as numpy arrays, over gRPC or HTTP."""

from attendant_client.aio import AsyncClient
from attendant_client.client import Client
from attendant_client.errors import AttendantError
from attendant_client.model_info import DataFileRecord, EvaluationRecord, Limits, ModelInfo, TrainingRecord
from attendant_client.retries import RetryPolicy
from attendant_client.types import (
    AttendResponse,
    AttendResult,
    AttentionMap,
    CompareResponse,
    ContributionRest,
    Contributor,
    EncodeResponse,
    EncodeResult,
    Input,
    LayerSimilarity,
    Occurrence,
    OccurrenceResult,
    SimilarityPair,
    SimilarityResponse,
    SimilarityText,
    SparseMatrix,
    Token,
    TokenizeResponse,
    TokenizeResult,
    TopContributions,
    Unit,
    Word,
)

__version__ = "0.1.0"
__all__ = [
    "AsyncClient",
    "AttendResponse",
    "AttendResult",
    "AttendantError",
    "AttentionMap",
    "Client",
    "CompareResponse",
    "ContributionRest",
    "Contributor",
    "DataFileRecord",
    "EncodeResponse",
    "EncodeResult",
    "EvaluationRecord",
    "Input",
    "LayerSimilarity",
    "Limits",
    "ModelInfo",
    "Occurrence",
    "OccurrenceResult",
    "RetryPolicy",
    "SimilarityPair",
    "SimilarityResponse",
    "SimilarityText",
    "SparseMatrix",
    "Token",
    "TokenizeResponse",
    "TokenizeResult",
    "TopContributions",
    "TrainingRecord",
    "Unit",
    "Word",
]
