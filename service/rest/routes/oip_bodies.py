"""Request and response bodies of the Open Inference Protocol."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from service.rest.codec import FirstError, at_most

Datatype = Literal["BYTES", "INT64", "INT32", "BOOL", "FP32"]


class OipModel(BaseModel):
    """A JSON object that ignores unknown fields: clients send fields of their own, such as `model_name`."""

    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False, frozen=True)


class InferInputBody(OipModel):
    """An input tensor."""

    name: str = Field(description="`text`, `input_ids` or `attention_mask`.")
    shape: Annotated[list[int], FirstError(), at_most("axes")] = Field(description="Sizes of the axes.")
    datatype: str = Field(description="Element type.")
    parameters: dict[str, Any] | None = Field(
        None, description="`binary_data_size`: number of bytes after the JSON that are the elements."
    )
    data: Any = Field(None, description="Elements in row-major order, flat or nested.")


class RequestedOutputBody(OipModel):
    """An output to return."""

    name: str = Field(description="`pooled`, `tokens`, `token_counts` or `attention`.")
    parameters: dict[str, Any] | None = Field(
        None, description="`binary_data`: whether the elements are to follow the JSON as bytes."
    )


class InferBody(OipModel):
    """The body of POST /v2/models/{name}/infer."""

    id: str | None = Field(None, description="Identifier that the response repeats.")
    parameters: dict[str, Any] | None = Field(None, description="Options, such as `normalize` or `truncation`.")
    inputs: Annotated[list[InferInputBody], FirstError(), at_most("tensors")] = Field(description="Input tensors.")
    outputs: Annotated[list[RequestedOutputBody], FirstError(), at_most("tensors")] | None = Field(
        None, description="Outputs to return. null is `pooled`."
    )


class IndexBody(OipModel):
    """The optional body of POST /v2/repository/index."""

    ready: bool | None = Field(None, description="Whether to return the models that are ready, and no others.")


class LoadBody(OipModel):
    """The optional body of a request to load or unload a model."""

    parameters: dict[str, Any] | None = Field(
        None, description="Only `unload_dependents`, which has no effect, is supported, for unloading."
    )


BODIES = (InferBody, IndexBody, LoadBody)


class OipErrorBody(BaseModel):
    """The body of every error of the Open Inference Protocol."""

    error: str = Field(description="Message for people.")


class OipLiveBody(BaseModel):
    """The response of GET /v2/health/live."""

    live: bool


class OipReadyBody(BaseModel):
    """The response of GET /v2/health/ready."""

    ready: bool


class OipModelReadyBody(BaseModel):
    """The response of GET /v2/models/{name}/ready."""

    name: str = Field(description="Name of the served model.")
    ready: bool


class OipServerBody(BaseModel):
    """The response of GET /v2."""

    name: str = Field(description="Name of the server.")
    version: str = Field(description="Version of the server.")
    extensions: list[str] = Field(description="Extensions of the protocol that the server has.")


class OipTensorBody(BaseModel):
    """An input or output of a model."""

    name: str
    datatype: Datatype
    shape: list[int] = Field(description="Sizes of the axes; -1 for a size that depends on the request.")


class OipModelBody(BaseModel):
    """The response of GET /v2/models/{name}."""

    name: str = Field(description="Name of the served model.")
    versions: list[str] = Field(description='Always `["1"]`.')
    platform: str = Field(description="Software that runs the model.")
    inputs: list[OipTensorBody] = Field(description="Inputs that a request may have.")
    outputs: list[OipTensorBody] = Field(description="Outputs that a request may select.")


class OipConfigInputBody(BaseModel):
    """An input in a model configuration."""

    name: str
    data_type: str
    dims: list[int]
    optional: bool


class OipConfigOutputBody(BaseModel):
    """An output in a model configuration."""

    name: str
    data_type: str
    dims: list[int]


class OipTransactionPolicyBody(BaseModel):
    """How responses relate to requests."""

    decoupled: bool


class OipConfigBody(BaseModel):
    """The response of GET /v2/models/{name}/config: a part of Triton's model configuration."""

    name: str = Field(description="Name of the served model.")
    platform: str = Field(description="Software that runs the model.")
    backend: str = Field(description="Software that runs the model.")
    max_batch_size: int = Field(description="0: the sizes of the axes include the number of inputs.")
    input: list[OipConfigInputBody]
    output: list[OipConfigOutputBody]
    model_transaction_policy: OipTransactionPolicyBody


class OipDurationBody(BaseModel):
    """A number of events and their total duration."""

    count: int
    ns: int | None = Field(None, description="Nanoseconds; absent if they are not measured.")


class OipStagesBody(BaseModel):
    """The stages of the requests of all APIs."""

    success: OipDurationBody = Field(description="Requests with a result.")
    fail: OipDurationBody = Field(description="Requests that failed with an error of the server.")
    queue: OipDurationBody = Field(description="Waits for the first batch, per request.")
    compute_input: OipDurationBody = Field(description="Tokenization, per request.")
    compute_infer: OipDurationBody = Field(description="Inference, per batch.")
    compute_output: OipDurationBody = Field(description="Postprocessing, per request.")


class OipModelStatisticsBody(BaseModel):
    """The statistics of one model."""

    name: str = Field(description="Name of the served model.")
    version: str = Field(description="Always `1`.")
    inference_count: int = Field(description="Number of inputs that the model has run.")
    execution_count: int = Field(description="Number of batches that the model has run.")
    inference_stats: OipStagesBody


class OipStatisticsBody(BaseModel):
    """The response of GET /v2/models/stats."""

    model_stats: list[OipModelStatisticsBody]


class OipIndexEntryBody(BaseModel):
    """A model."""

    name: str = Field(description="Name of the model, or an alias of a served one.")
    version: str = Field(description="Always `1`.")
    state: Literal["READY", "LOADING", "UNAVAILABLE"] = Field(description="`READY` if requests are accepted.")
    reason: str = Field(description="Why it is not ready.")


class OipLoadBody(BaseModel):
    """The response of a request to load or unload a model: an empty object."""


class OipOutputBody(BaseModel):
    """An output tensor."""

    name: str
    datatype: Datatype
    shape: list[int] = Field(description="Sizes of the axes.")
    parameters: dict[str, int] | None = Field(
        None, description="`binary_data_size`: number of bytes after the JSON that are the elements."
    )
    data: list[float] | None = Field(None, description="Elements in row-major order, flat.")


class OipInferResponseBody(BaseModel):
    """The response of POST /v2/models/{name}/infer."""

    model_name: str = Field(description="Name of the served model.")
    model_version: str = Field(description="Always `1`.")
    id: str | None = Field(None, description="Identifier of the request.")
    outputs: list[OipOutputBody] = Field(description="Outputs in the order of the request.")
