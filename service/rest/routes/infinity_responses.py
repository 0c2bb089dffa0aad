"""Response bodies of infinity's API."""

from typing import Literal

from pydantic import BaseModel, Field

from service.rest.schemas import EmbeddingBody, EmbeddingsUsageBody


class InfinityResponseBody(BaseModel):
    """Fields of the responses to POST requests."""

    id: str = Field(description="Request ID.")
    created: int = Field(description="Time in seconds since 1970.")
    model: str = Field(description="Name of the served model.")
    usage: EmbeddingsUsageBody


class InfinityEmbeddingsResponseBody(InfinityResponseBody):
    """The response of /infinity/embeddings."""

    object: Literal["list"]
    data: list[EmbeddingBody] = Field(description="One embedding per text.")


class InfinityRankBody(BaseModel):
    """A document and its score."""

    relevance_score: float
    index: int = Field(description="Index of the document in the request.")
    document: str | None = Field(None, description="The document, with `return_documents`.")


class InfinityRerankResponseBody(InfinityResponseBody):
    """The response of /infinity/rerank."""

    object: Literal["rerank"]
    results: list[InfinityRankBody] = Field(description="The documents, best first.")


class InfinityLabelBody(BaseModel):
    """A label and its score."""

    score: float
    label: str


class InfinityClassifyResponseBody(InfinityResponseBody):
    """The response of /infinity/classify."""

    object: Literal["classify"]
    data: list[list[InfinityLabelBody]] = Field(description="The labels of each text, best first.")


class InfinityStatsBody(BaseModel):
    """The load of a model."""

    queue_fraction: float = Field(description="Estimated wait as a fraction of its limit.")
    queue_absolute: int = Field(description="Queued tokens.")
    batch_size: int = Field(description="Maximum number of tokens in a batch.")


class InfinityModelBody(BaseModel):
    """A served model."""

    id: str
    object: Literal["model"]
    owned_by: Literal["infinity"]
    created: int
    stats: InfinityStatsBody
    backend: str = Field(description="Execution provider.")
    capabilities: list[Literal["embed", "rerank", "classify"]]


class InfinityModelsBody(BaseModel):
    """The response of /infinity/models."""

    object: Literal["list"]
    data: list[InfinityModelBody] = Field(description="The served models, the default model first.")
