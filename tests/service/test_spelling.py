"""Names of fields and values in error messages: each API uses its own spelling, and the engine uses none of them."""

import pytest
from attendant_client.pb import encoder_pb2 as pb
from attendant_client.wire import enum_numbers

from service.errors import ConflictingFields, ServiceError, TooLong
from service.oip.inference import TYPES, InferSpelling
from service.rest import apis
from service.rest.api import Api
from service.rest.routes import cohere, huggingface, infinity, openai, tei, vllm
from service.rpc.codec import PROTO
from service.spelling import ENGINE, Remedy, Spelling, named
from service.spelling import ENGINE as NATIVE


def spelling_of(api: Api) -> Spelling:
    assert api.spelling is not None
    return api.spelling


TEI, OPENAI, COHERE, VLLM, INFINITY, HUGGINGFACE = map(
    spelling_of, (apis.TEI, openai.API, cohere.API, vllm.API, infinity.API, huggingface.API)
)
INFER = InferSpelling()


def too_long(path: str) -> ServiceError:
    remedy = Remedy("Shorten it", ({"truncation": "right"}, {"encoding_format": "base64", "decimals": None}))
    return TooLong("too long", remedy, field=path, actual=302, maximum=256, unit="tokens")


@pytest.mark.parametrize(
    ("spelling", "path", "message"),
    [
        (NATIVE, "inputs[1]", 'set truncation to "right" or encoding_format to "base64" without decimals'),
        (PROTO, "inputs[1]", "set truncation to TRUNCATION_RIGHT"),
        (OPENAI, "input[1]", "set truncate to true"),
        (TEI, "inputs[1]", "set truncate to true"),
        (COHERE, "texts[1]", 'set truncate to "END"'),
        (VLLM, "input[1]", "set truncate_prompt_tokens to -1"),
        (INFER, "text[1]", 'set truncation to "right"'),
    ],
)
def test_each_api_names_its_own_options(spelling: Spelling, path: str, message: str) -> None:
    error = too_long("inputs[1]")
    error.spell(spelling)
    assert error.field == path
    assert str(error) == error.message == f"{path}: too long (302 tokens, limit 256). Shorten it or {message}."


@pytest.mark.parametrize(
    ("spelling", "path", "expected"),
    [
        (OPENAI, "inputs[2].token_ids", "input[2]"),
        (OPENAI, "dimensions", "dimensions"),
        (OPENAI, "prompt_name", "input_type"),
        (TEI, "inputs[2].token_ids", "inputs[2]"),
        (TEI, "token_ids[2]", "ids[2]"),
        (TEI, "token_ids", "ids"),
        (TEI, "queries", "inputs.source_sentence"),
        (TEI, "queries[0]", "inputs.source_sentence"),
        (TEI, "documents[3]", "inputs.sentences[3]"),
        (INFINITY, "inputs[2]", "input[2]"),
        (COHERE, "inputs[2]", "texts[2]"),
        (COHERE, "dimensions", "output_dimension"),
        (COHERE, "prompt_name", "input_type"),
        (HUGGINGFACE, "targets[1]", "parameters.targets[1]"),
        (HUGGINGFACE, "aggregation", "parameters.aggregation_strategy"),
        (INFER, "inputs", "text"),
        (InferSpelling(tensor="input_ids"), "inputs[2].token_ids", "input_ids[2]"),
        (INFER, "layers[1]", "parameters.layers[1]"),
        (PROTO, "inputs[2].token_ids", "inputs[2].token_ids"),
    ],
)
def test_each_api_has_its_own_paths(spelling: Spelling, path: str, expected: str) -> None:
    assert spelling.path(path) == expected


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


def test_suggestion_of_an_option_that_the_api_lacks_is_left_out() -> None:
    remedy = Remedy("Request fewer layers or inputs", ({"dtype": "float16"}, {"top_k": 10}), hint="About 2 fit.")
    assert TEI.remedy(remedy) == "Request fewer layers or inputs. About 2 fit."
    assert ENGINE.remedy(remedy) == (
        'Request fewer layers or inputs, or set dtype to "float16" or top_k to 10. About 2 fit.'
    )


def test_options_that_errors_suggest_exist() -> None:
    assert set((OPENAI.options or {}).values()) <= set(openai.EmbeddingsBody.model_fields)
    assert TEI.option("truncation") in tei.EmbedBody.model_fields
    assert COHERE.option("truncation") in cohere.CohereEmbedBody.model_fields
    assert VLLM.option("truncation") in vllm.VllmScoreBody.model_fields
    assert HUGGINGFACE.option("top_k") == "parameters.top_k"
    assert HUGGINGFACE.option("truncation") is None
    assert {field for field in ("truncation", "head_reduce") if INFER.option(field)} <= set(TYPES)
