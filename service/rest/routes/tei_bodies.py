"""Request and response bodies of the TEI API."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag

from service.engine.schema.encode import Truncation
from service.rest.codec import FirstError, Integers, Texts, TokenIds, at_most, by_type, count_inputs_or_ids
from service.rest.problems import IDS_LIST_TAG, IDS_TAG, LIST_TAG, OTHER_TAG


def _capitalize(value: Any) -> Any:
    """Accept lower case. As further values of the enumeration, it would break the generation of clients."""
    return value.capitalize() if value in ("left", "right") else value


Direction = Annotated[Literal["Left", "Right"], BeforeValidator(_capitalize)]
DIRECTIONS: dict[str, Truncation] = {"Left": "left", "Right": "right"}

PROMPT_NAME_DESCRIPTION = "Name of a prompt of the model."
SCORES_DESCRIPTION = "Whether to return scores without an activation function."


class TeiModel(BaseModel):
    """A JSON object that ignores unknown fields, as TEI does, and rejects type coercion and NaN."""

    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False, frozen=True)


class TruncatableBody(TeiModel):
    """A request whose inputs may be truncated."""

    truncate: bool | None = Field(
        None, description="Whether to truncate inputs over the token limit, which are an error otherwise. null is true."
    )
    truncation_direction: Direction | None = Field(
        None,
        description="Side to drop tokens from, in any case. null is the side that the model's tokenizer names, usually "
        "`Right`.",
    )

    @property
    def truncation(self) -> Truncation:
        """The truncation as the engine names it."""
        if self.truncate is False:
            return "error"
        return "auto" if self.truncation_direction is None else DIRECTIONS[self.truncation_direction]


def _input_branch(value: Any) -> str:
    """Select the kind of `inputs` by its first item; a list of numbers is one input."""
    if isinstance(value, str):
        return OTHER_TAG
    return IDS_TAG if isinstance(value, list) and value and isinstance(value[0], int) else LIST_TAG


def _ids_branch(value: Any) -> str:
    """Select the kind of `ids` by its first item."""
    return IDS_TAG if isinstance(value, list) and value and isinstance(value[0], int) else IDS_LIST_TAG


def _pair_branch(value: Any) -> str:
    """Select the kind of `inputs` of a classifier by its first item."""
    if isinstance(value, str):
        return OTHER_TAG
    return IDS_LIST_TAG if isinstance(value, list) and value and isinstance(value[0], list) else LIST_TAG


TeiItem = Annotated[
    Annotated[str, Tag(OTHER_TAG)] | Annotated[TokenIds, Tag(IDS_TAG)], by_type(str, OTHER_TAG, IDS_TAG)
]
TeiInputs = Annotated[
    Annotated[str, Tag(OTHER_TAG)]
    | Annotated[Integers, Tag(IDS_TAG)]
    | Annotated[list[TeiItem], FirstError(), Tag(LIST_TAG)],
    Discriminator(_input_branch),
    BeforeValidator(count_inputs_or_ids),
]
TeiIds = Annotated[
    Annotated[Integers, Tag(IDS_TAG)] | Annotated[list[TokenIds], FirstError(), Tag(IDS_LIST_TAG)],
    Discriminator(_ids_branch),
    BeforeValidator(count_inputs_or_ids),
]
TextList = Annotated[list[str], FirstError(), at_most("inputs")]
TextOrPair = Annotated[list[str], FirstError()]
TeiPairs = Annotated[
    Annotated[str, Tag(OTHER_TAG)]
    | Annotated[TextOrPair, Tag(LIST_TAG)]
    | Annotated[list[TextOrPair], FirstError(), at_most("inputs"), Tag(IDS_LIST_TAG)],
    Discriminator(_pair_branch),
]

INPUTS_DESCRIPTION = "A text, token ids, or a list of these."


class TeiEmbedBody(TruncatableBody):
    """The body of POST /embed and POST /."""

    inputs: TeiInputs = Field(description=INPUTS_DESCRIPTION)
    prompt_name: str | None = Field(None, description=PROMPT_NAME_DESCRIPTION)
    normalize: bool | None = Field(None, description="Whether to scale embeddings to length 1. null is true.")
    dimensions: int | None = Field(
        None,
        description="Number of leading components to return (Matryoshka truncation).",
        json_schema_extra={"minimum": 1},
    )


class TeiEmbedAllBody(TruncatableBody):
    """The body of POST /embed_all."""

    inputs: TeiInputs = Field(description=INPUTS_DESCRIPTION)
    prompt_name: str | None = Field(None, description=PROMPT_NAME_DESCRIPTION)


class TeiEmbedSparseBody(TeiEmbedAllBody):
    """The body of POST /embed_sparse."""


class TeiRerankBody(TruncatableBody):
    """The body of POST /rerank, and of POST /v1/rerank with `texts`."""

    query: str = Field(description="The query.")
    texts: TextList = Field(description="The texts to rank.")
    raw_scores: bool | None = Field(None, description=SCORES_DESCRIPTION)
    return_text: bool | None = Field(None, description="Whether to return the texts.")


class TeiPredictBody(TruncatableBody):
    """The body of POST /predict."""

    inputs: TeiPairs = Field(description="A text, a pair of texts, or a list of lists of one or two texts.")
    raw_scores: bool | None = Field(None, description=SCORES_DESCRIPTION)


class TeiSentencesBody(TeiModel):
    """The texts to compare."""

    source_sentence: str = Field(description="The text to compare with the others.")
    sentences: TextList = Field(description="The other texts.")


class TeiSimilarityParametersBody(TruncatableBody):
    """The options of POST /similarity."""

    prompt_name: str | None = Field(None, description=PROMPT_NAME_DESCRIPTION)


class TeiSimilarityBody(TeiModel):
    """The body of POST /similarity."""

    inputs: TeiSentencesBody = Field(description="The texts to compare.")
    parameters: TeiSimilarityParametersBody | None = Field(None, description="Options.")


class TeiTokenizeBody(TeiModel):
    """The body of POST /tokenize."""

    inputs: Texts = Field(description="A text or a list of texts.")
    add_special_tokens: bool | None = Field(None, description="Whether to return special tokens. null is true.")
    prompt_name: str | None = Field(None, description=PROMPT_NAME_DESCRIPTION)


class TeiDecodeBody(TeiModel):
    """The body of POST /decode."""

    ids: TeiIds = Field(description="Token ids, or a list of lists of token ids.")
    skip_special_tokens: bool | None = Field(None, description="Whether to leave out special tokens. null is true.")


BODIES = (
    TeiEmbedBody,
    TeiEmbedAllBody,
    TeiEmbedSparseBody,
    TeiRerankBody,
    TeiPredictBody,
    TeiSimilarityBody,
    TeiTokenizeBody,
    TeiDecodeBody,
)


class TeiErrorBody(BaseModel):
    """The body of every error of the TEI API."""

    error: str = Field(description="Message for people.")
    error_type: Literal["Unhealthy", "Backend", "Overloaded", "Validation", "Tokenizer", "Empty"] = Field(
        description="Kind of error."
    )


class TeiSparseValueBody(BaseModel):
    """One component of a sparse embedding."""

    index: int
    value: float


class TeiRankBody(BaseModel):
    """The score of one text."""

    index: int
    score: float
    text: str | None = None


class TeiPredictionBody(BaseModel):
    """The score of one label."""

    score: float
    label: str


class TeiTokenBody(BaseModel):
    """One token; offsets count bytes of the text in UTF-8."""

    id: int
    text: str = Field(description="The part of the text that the token covers; the name of a special token.")
    special: bool
    start: int | None = Field(description="First byte; null for special tokens.")
    stop: int | None = Field(description="End byte, exclusive; null for special tokens.")


class TeiPoolingBody(BaseModel):
    """How the model pools token vectors."""

    pooling: Literal["mean", "cls", "max", "last_token", "splade"]


class TeiLabelsBody(BaseModel):
    """The labels of a classifier by number, and their numbers."""

    id2label: dict[str, str]
    label2id: dict[str, int]


class TeiEmbeddingTypeBody(BaseModel):
    """The type of an embedding model."""

    embedding: TeiPoolingBody


class TeiClassifierTypeBody(BaseModel):
    """The type of a classifier with several labels."""

    classifier: TeiLabelsBody


class TeiRerankerTypeBody(BaseModel):
    """The type of a cross-encoder."""

    reranker: TeiLabelsBody


class TeiInfoBody(BaseModel):
    """The response of GET /info."""

    model_id: str = Field(description="Source of the model.")
    model_sha: str | None = Field(description="Revision of the source.")
    model_dtype: Literal["float32", "bfloat16", "float16", "int8"] = Field(description="Precision of inference.")
    served_model_name: str = Field(description="Name of the served model.")
    model_type: TeiEmbeddingTypeBody | TeiClassifierTypeBody | TeiRerankerTypeBody = Field(
        description="Type of the model, with its pooling or labels."
    )
    max_concurrent_requests: int = Field(description="Maximum number of connections.")
    max_input_length: int = Field(description="Maximum number of tokens per input.")
    max_batch_tokens: int = Field(description="Maximum number of tokens in a batch.")
    max_batch_requests: int | None = Field(description="Always null.")
    max_client_batch_size: int = Field(description="Maximum number of inputs per request.")
    auto_truncate: bool = Field(description="Always true.")
    tokenization_workers: int = Field(description="Number of threads for tokenization.")
    version: str = Field(description="Version of the server.")
    sha: str | None = Field(description="Always null.")
    docker_label: str | None = Field(description="Always null.")
