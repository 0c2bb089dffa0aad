"""Client for Attendant: contextual embeddings and attention maps as numpy arrays, over gRPC or HTTP."""

from attendant_client.aio import AsyncClient
from attendant_client.client import Client
from attendant_client.errors import AttendantError
from attendant_client.label_types import (
    ClassifyResponse,
    ClassifyResult,
    Entity,
    Label,
    RankedDocument,
    RankExplanation,
    RerankResponse,
    TokenClassifyResponse,
    TokenClassifyResult,
)
from attendant_client.model_info import DataFileRecord, EvaluationRecord, Limits, ModelInfo, TrainingRecord
from attendant_client.retries import RetryPolicy
from attendant_client.similarity_types import (
    ContributionRest,
    SharedEntry,
    SimilarityPair,
    SimilarityResponse,
    SimilarityText,
    TokenMatch,
    TopContributions,
)
from attendant_client.tls import TlsFiles
from attendant_client.types import (
    AttendResponse,
    AttendResult,
    AttentionMap,
    CompareResponse,
    Contributor,
    EncodeResponse,
    EncodeResult,
    Input,
    LayerSimilarity,
    Occurrence,
    OccurrenceResult,
    SparseMatrix,
    SparseVector,
    Token,
    TokenizeResponse,
    TokenizeResult,
    Unit,
    Word,
)
from attendant_client.word_types import (
    FilledPosition,
    FillMaskResponse,
    FillMaskResult,
    LayerPredictions,
    Prediction,
)

__version__ = "0.1.0"

__all__ = [
    "AsyncClient",
    "AttendResponse",
    "AttendResult",
    "AttendantError",
    "AttentionMap",
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
    "LayerPredictions",
    "LayerSimilarity",
    "Limits",
    "ModelInfo",
    "Occurrence",
    "OccurrenceResult",
    "Prediction",
    "RankExplanation",
    "RankedDocument",
    "RerankResponse",
    "RetryPolicy",
    "SharedEntry",
    "SimilarityPair",
    "SimilarityResponse",
    "SimilarityText",
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
]
