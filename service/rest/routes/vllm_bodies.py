"""Request and response bodies of vLLM's API."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from service.engine.engine import Engine
from service.engine.schema.encode import Truncation
from service.errors import OutOfRange
from service.rest.codec import ENCODING_DESCRIPTION, MODEL_DESCRIPTION, EncodingFormat, Texts
from service.rest.schemas import EmbeddingsUsageBody

NO_LIMIT = -1
"""The value of `truncate_prompt_tokens` that selects the model's limit."""

Task = Literal["embed", "token_embed", "classify"]


class VllmModel(BaseModel):
    """A JSON object that ignores unknown fields, as vLLM does, and rejects type coercion and NaN."""

    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False, frozen=True)

    model: str | None = Field(None, description=MODEL_DESCRIPTION)
    truncate_prompt_tokens: int | None = Field(
        None, description="-1 or the model's token limit truncates longer inputs. null rejects them."
    )
    use_activation: bool | None = Field(None, description="false returns logits instead of scores.")
    activation: bool | None = Field(None, description="Older name of `use_activation`.")
    softmax: bool | None = Field(None, description="Older name of `use_activation`.")

    @property
    def raw_scores(self) -> bool:
        """Whether to return logits."""
        return False in (self.use_activation, self.activation, self.softmax)

    def truncation(self, engine: Engine) -> Truncation:
        """Return the truncation as the engine names it. Raises `OutOfRange` for another limit than the model's."""
        limit, actual = engine.info.max_input_tokens, self.truncate_prompt_tokens
        if actual not in (None, NO_LIMIT, limit):
            remedy = f"Use {NO_LIMIT} or {limit}."
            raise OutOfRange("not the model's limit", remedy, field="truncate_prompt_tokens", actual=actual)
        return "error" if actual is None else "auto"


class VllmScoreBody(VllmModel):
    """The body of POST /score and POST /v1/score."""

    text_1: Texts = Field(description="A text, to compare with each text of `text_2`, or one text for each of them.")
    text_2: Texts = Field(description="A text or a list of texts.")


class VllmClassifyBody(VllmModel):
    """The body of POST /classify."""

    input: Texts = Field(description="A text or a list of texts.")


class VllmPoolingBody(VllmModel):
    """The body of POST /pooling."""

    input: Texts = Field(description="A text or a list of texts.")
    task: Task | None = Field(
        None,
        description="What to return per input: its embedding, one vector per token, or the score of each label. null "
        "is `classify` for a classifier, otherwise `token_embed`.",
    )
    normalize: bool | None = Field(None, description="false returns vectors of any length, as `use_activation` does.")
    dimensions: int | None = Field(
        None,
        description="Number of leading components to return (Matryoshka truncation). Requires the task `embed`.",
        json_schema_extra={"minimum": 1},
    )
    encoding_format: EncodingFormat = Field("float", description=ENCODING_DESCRIPTION)
    embed_dtype: Literal["float32"] = Field("float32", description="Type of the numbers in base64.")
    endianness: Literal["native", "little"] = Field("native", description="Order of bytes in base64: little-endian.")


BODIES = (VllmScoreBody, VllmClassifyBody, VllmPoolingBody)


class VllmErrorDetailBody(BaseModel):
    """One error in vLLM's format."""

    message: str
    type: str
    param: str | None
    code: int = Field(description="HTTP status.")


class VllmErrorBody(BaseModel):
    """The body of every error of vLLM's API."""

    error: VllmErrorDetailBody


class VllmResponseBody(BaseModel):
    """The fields of every response."""

    id: str = Field(description="Request ID.")
    object: Literal["list"]
    created: int = Field(description="Time in seconds since 1970.")
    model: str = Field(description="Name of the served model.")
    usage: EmbeddingsUsageBody


class VllmScoreItemBody(BaseModel):
    """The score of one pair."""

    index: int
    object: Literal["score"]
    score: float


class VllmScoreResponseBody(VllmResponseBody):
    """The response of /score and /v1/score."""

    data: list[VllmScoreItemBody] = Field(description="One score per pair, in the order of `text_2`.")


class VllmLabelsBody(BaseModel):
    """The labels of one input."""

    index: int
    label: str = Field(description="The label with the highest score.")
    probs: list[float] = Field(description="Score of each label, in the order of the model's labels.")
    num_classes: int = Field(description="Number of labels.")


class VllmClassifyResponseBody(VllmResponseBody):
    """The response of /classify."""

    data: list[VllmLabelsBody] = Field(description="One result per input, in the order of the inputs.")


class VllmPoolingItemBody(BaseModel):
    """The result of one input."""

    index: int
    object: Literal["pooling"]
    data: list[float] | list[list[float]] | str = Field(
        description="An embedding, one vector per token, or the score of each label in the order of the model's "
        "labels; in base64 if requested."
    )


class VllmPoolingResponseBody(VllmResponseBody):
    """The response of /pooling."""

    data: list[VllmPoolingItemBody] = Field(description="One result per input, in the order of the inputs.")
