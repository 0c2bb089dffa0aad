"""Names of fields and values in error messages: each API uses its own spelling, and the engine uses none of them."""

from attendant_client.pb import encoder_pb2 as pb
from attendant_client.wire import enum_numbers

from service.errors import ConflictingFields
from service.oip.inference import TYPES, InferSpelling
from service.rest import middleware
from service.rest.api import Api
from service.rest.routes import cohere, huggingface, infinity, openai, tei, vllm
from service.rpc.messages import PROTO
from service.spelling import Spelling, named


def spelling_of(api: Api) -> Spelling:
    assert api.spelling is not None
    return api.spelling


TEI, OPENAI, COHERE, VLLM, INFINITY, HUGGINGFACE = map(
    spelling_of, (middleware.TEI, openai.API, cohere.API, vllm.API, infinity.API, huggingface.API)
)


def test_values_are_spelled_in_problem_and_remedy() -> None:
    error = ConflictingFields(f"{named('dtype', 'int8')} needs {{queries}}", "Use {dtype.float16}.", field="dtype")
    assert error.message == 'dtype: "int8" needs queries. Use "float16".'
    error.spell(PROTO)
    assert error.message == "dtype: DTYPE_INT8 needs queries. Use DTYPE_FLOAT16."
    error = ConflictingFields("not supported", "Send text in {inputs}[3].", field="prompt_name")
    error.spell(OPENAI)
    assert error.message == "input_type: not supported. Send text in input[3]."
    error = ConflictingFields(f"{named('dtype', 'int8')} needs {{queries}}", "Use {dtype.float16}.", field="dtype")
    error.spell(TEI)
    assert error.message == 'dtype: "int8" needs inputs.source_sentence. Use "float16".'


def test_grpc_spells_every_value_of_every_option() -> None:
    """Options of two operations can have the same name and different values, such as `outputs`."""
    for message in pb.DESCRIPTOR.message_types_by_name.values():
        for field in message.fields:
            if message.name.endswith(("Request", "Options")) and field.enum_type is not None:
                for value in enum_numbers(field.enum_type):
                    assert PROTO.value(field.name, value).endswith(f"_{value.upper()}")


def test_options_that_errors_suggest_exist() -> None:
    assert set((OPENAI.options or {}).values()) <= set(openai.EmbeddingsRequest.model_fields)
    assert TEI.option("truncation") in tei.TeiEmbedRequest.model_fields
    assert COHERE.option("truncation") in cohere.CohereEmbedRequest.model_fields
    assert VLLM.option("truncation") in vllm.VllmScoreRequest.model_fields
    assert HUGGINGFACE.option("top_k") == "parameters.top_k"
    assert HUGGINGFACE.option("truncation") is None
    assert {field for field in ("truncation", "head_reduce") if InferSpelling().option(field)} <= set(TYPES)
