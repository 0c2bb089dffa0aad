"""Schemas of responses about labels and words, for the OpenAPI document."""

from pydantic import BaseModel, Field

from service.engine.schema.entities import Entity
from service.engine.schema.explain import Unit
from service.engine.schema.fill_mask import FilledPosition
from service.rest.schemas import UsageBody


class LabelBody(BaseModel):
    """A label and its score."""

    label: str = Field(description="Name of the label.")
    score: float = Field(description="The score.")
    effects: list[float] | None = Field(None, description="Score less the score without each unit, (U), with `effect`.")


class ClassifyResultBody(BaseModel):
    """The labels of one input."""

    token_count: int = Field(description="Tokens that the model read, special tokens included.")
    truncated: bool = Field(description="Whether the input was truncated.")
    labels: list[LabelBody] = Field(description="The labels, best first.")
    units: list[Unit] | None = Field(None, description="Tokens or words, with `effect`.")


class ClassifyResponseBody(BaseModel):
    """The response of /v1/classify."""

    model: str = Field(description="Name of the served model.")
    precision: str = Field(description="Precision of inference.")
    results: list[ClassifyResultBody] = Field(description="One result per input, in the order of the inputs.")
    usage: UsageBody


class TokenClassifyResultBody(BaseModel):
    """The entities of one input."""

    token_count: int = Field(description="Tokens that the model read, special tokens included.")
    truncated: bool = Field(description="Whether the input was truncated.")
    entities: list[Entity] = Field(description="The entities, in the order of the text.")


class TokenClassifyResponseBody(BaseModel):
    """The response of /v1/token-classify."""

    model: str = Field(description="Name of the served model.")
    precision: str = Field(description="Precision of inference.")
    results: list[TokenClassifyResultBody] = Field(description="One result per input, in the order of the inputs.")
    usage: UsageBody


class FillMaskResultBody(BaseModel):
    """The predictions for one input."""

    token_count: int = Field(description="Tokens that the model read, special tokens included.")
    truncated: bool = Field(description="Whether the input was truncated.")
    positions: list[FilledPosition] = Field(description="The predicted tokens, in the order of the text.")


class FillMaskResponseBody(BaseModel):
    """The response of /v1/fill-mask."""

    model: str = Field(description="Name of the served model.")
    precision: str = Field(description="Precision of inference.")
    results: list[FillMaskResultBody] = Field(description="One result per input, in the order of the inputs.")
    usage: UsageBody


class HuggingFaceWordBody(BaseModel):
    """A predicted word in the Hugging Face Inference API."""

    score: float = Field(description="Probability among all entries of the vocabulary.")
    token: int = Field(description="Id of the token.")
    token_str: str = Field(description="Text of the token.")
    sequence: str = Field(description="The text with the word instead of the mask token.")


class HuggingFaceEntityBody(BaseModel):
    """An entity in the Hugging Face Inference API."""

    entity_group: str | None = Field(None, description="Label of an entity.")
    entity: str | None = Field(None, description="Label of a token, with the aggregation strategy `none`.")
    score: float = Field(description="The score.")
    word: str = Field(description="The entity's text.")
    start: int = Field(description="Index of its first character.")
    end: int = Field(description="Index after its last character.")


class HuggingFaceErrorBody(BaseModel):
    """An error of the Hugging Face Inference API."""

    error: str = Field(description="The message.")
