"""What is refused before anything is tokenised: each message names the field and the limit, and never the input."""

from typing import Any

import pytest

from model.artifact import Manifest
from model.tokenizer import Source
from service.engine.schema.encode import EncodeRequest, Input, Limits
from service.engine.schema.explain import AttendRequest, CompareRequest, Occurrence
from service.engine.validation import check_attend, check_compare, check_encode, check_inputs
from service.errors import EmptyInput, InvalidArgument, RequestTooLarge, ServiceError, Unsupported

LIMITS = Limits(
    max_inputs=4,
    max_spans_per_input=3,
    max_spans_per_request=5,
    max_input_characters=20,
    max_request_bytes=1000,
    max_grpc_message_bytes=1000,
    max_pending_request_bytes=1000,
    max_connections=1000,
    max_grpc_streams=1000,
    max_response_bytes=1000,
    max_queue_ms=1000,
    max_explain_queue_ms=1000,
    max_queue_tokens=1000,
    max_explain_queue_tokens=1000,
    max_deadline_ms=1000,
    header_timeout_ms=1000,
    body_timeout_ms=1000,
)
SECRET = "Sesame"


def text(content: str = SECRET, pair: str | None = None, spans: tuple[tuple[int, int], ...] = ()) -> Input:
    return Input(Source(content, pair), spans)


def ids(*numbers: int, spans: tuple[tuple[int, int], ...] = ()) -> Input:
    return Input(Source(token_ids=numbers), spans)


@pytest.fixture
def small(manifest: Manifest) -> Manifest:
    """A model of 100 tokens."""
    return manifest.model_copy(update={"vocab_size": 100})


@pytest.mark.parametrize(
    ("inputs", "kind", "reason", "message"),
    [
        ([], EmptyInput, "empty_input", "inputs is empty; send at least one."),
        (
            [text()] * 5,
            InvalidArgument,
            "too_many_inputs",
            "inputs: too many items (5, limit 4). Split the request.",
        ),
        ([text(), text("")], EmptyInput, "empty_input", "inputs[1] is empty or blank; send some text."),
        ([text(" \t\u3000\n")], EmptyInput, "empty_input", "inputs[0] is empty or blank; send some text."),
        ([text("a" * 21)], RequestTooLarge, "input_too_large", "inputs[0].text has 21 characters; the limit is 20."),
        (
            [text("a", "b" * 21)],
            RequestTooLarge,
            "input_too_large",
            "inputs[0].pair has 21 characters; the limit is 20.",
        ),
        (
            [text(spans=((0, 7),))],
            InvalidArgument,
            "span_out_of_range",
            "inputs[0].spans[0] must satisfy 0 <=",
        ),
        ([text(spans=((0, 1), (2, 2)))], InvalidArgument, "span_out_of_range", "inputs[0].spans[1] must satisfy"),
        ([text(spans=((-1, 2),))], InvalidArgument, "span_out_of_range", "inputs[0].spans[0] must satisfy"),
        ([text(spans=((3, 2),))], InvalidArgument, "span_out_of_range", "inputs[0].spans[0] must satisfy"),
        ([ids()], EmptyInput, "empty_input", "inputs[0].token_ids is empty; send at least one id."),
        ([ids(*[1] * 21)], RequestTooLarge, "input_too_large", "inputs[0].token_ids has 21 ids; the limit is 20."),
        ([ids(1, 100)], InvalidArgument, "token_id_out_of_range", "inputs[0].token_ids has an id outside 0..99"),
        ([ids(-1)], InvalidArgument, "token_id_out_of_range", "inputs[0].token_ids has an id outside 0..99"),
        ([ids(1, spans=((0, 1),))], InvalidArgument, "spans_need_text", "inputs[0].spans needs a text"),
        ([text(), text("a", " ")], EmptyInput, "empty_input", "inputs[1].pair: empty or blank."),
        ([text("a", "")], EmptyInput, "empty_input", "inputs[0].pair: empty or blank."),
        (
            [text(spans=((0, 1),) * 4)],
            InvalidArgument,
            "too_many_spans",
            "inputs[0].spans: too many items (4, limit 3).",
        ),
        (
            [text(spans=((0, 1),) * 3)] * 2,
            InvalidArgument,
            "too_many_spans",
            "inputs: too many spans (6, limit 5 per request).",
        ),
    ],
)
def test_inputs_are_refused_by_name(
    small: Manifest, inputs: list[Input], kind: type[ServiceError], reason: str, message: str
) -> None:
    """The first that is wrong, and why."""
    with pytest.raises(kind) as refused:
        check_inputs(inputs, "inputs", LIMITS, small)
    assert type(refused.value) is kind
    assert refused.value.reason == reason
    assert refused.value.message.startswith(message)
    assert SECRET not in refused.value.message


def test_inputs_at_the_limit_are_taken(small: Manifest) -> None:
    """Every limit is the last value that is let in."""
    inputs = [text("a" * 20, "b" * 20), text(spans=((0, 6),)), ids(*([0, 99] * 10)), text()]
    check_inputs(inputs, "inputs", LIMITS, small)


def test_the_field_is_the_callers_own(small: Manifest) -> None:
    """The OpenAI door calls it input."""
    with pytest.raises(EmptyInput, match=r"^input is empty"):
        check_inputs([], "input", LIMITS, small)


@pytest.mark.parametrize(
    ("fields", "kind", "message"),
    [
        ({"outputs": ()}, InvalidArgument, "outputs is empty"),
        ({"outputs": ("spans",)}, InvalidArgument, "outputs asks for spans, but an input has none"),
        (
            {"inputs": (text(spans=((0, 1),)), text()), "outputs": ("spans",)},
            InvalidArgument,
            "outputs asks for spans, but",
        ),
        (
            {"inputs": (text(spans=((0, 1),)),)},
            InvalidArgument,
            "An input has spans, but outputs does not ask for them",
        ),
        ({"inputs": (ids(1),), "outputs": ("words",)}, InvalidArgument, "outputs words and spans need text"),
        ({"layers": ()}, InvalidArgument, "layers is empty"),
        ({"layers": (7,)}, InvalidArgument, "layers[0] must be 0..6, or -7..-1 from the end"),
        ({"layers": (-1, -8)}, InvalidArgument, "layers[1] must be 0..6"),
        ({"layers": (6, -1)}, InvalidArgument, "layers names the same layer twice"),
        ({"layers": (0, 3, -7)}, InvalidArgument, "layers names the same layer twice"),
        (
            {"layers": (0, 6), "dimensions": 769},
            InvalidArgument,
            "dimensions must be 1..768, the width of the pooled vector",
        ),
        ({"layers": (0, 6), "layer_reduce": "mean", "dimensions": 385}, InvalidArgument, "dimensions must be 1..384"),
        ({"dimensions": 0}, InvalidArgument, "dimensions must be 1..384"),
        ({"dimensions": 385}, InvalidArgument, "dimensions must be 1..384"),
        ({"dimensions": -5}, InvalidArgument, "dimensions must be 1..384"),
        (
            {"dimensions": 8, "outputs": ("tokens",)},
            InvalidArgument,
            'dimensions: set, but "pooled" is missing from outputs',
        ),
        ({"dtype": "int8", "outputs": ("pooled", "words")}, InvalidArgument, "dtype int8 is for pooled vectors only"),
        ({"dtype": "ubinary", "outputs": ("static",)}, InvalidArgument, "dtype ubinary is for pooled vectors only"),
        ({"dtype": "int8", "normalize": False}, InvalidArgument, "dtype int8 is made of normalised vectors"),
        (
            {"dtype": "ubinary", "dimensions": 12},
            InvalidArgument,
            "dtype ubinary needs dimensions that are a multiple of 8",
        ),
    ],
)
def test_requests_are_refused_by_name(
    fields: dict[str, Any], kind: type[ServiceError], message: str, manifest: Manifest
) -> None:
    """Fields against each other and the model."""
    with pytest.raises(kind) as refused:
        check_encode(EncodeRequest(**{"inputs": (text(),), **fields}), manifest)
    assert type(refused.value) is kind
    assert refused.value.message.startswith(message)


@pytest.mark.parametrize(
    "fields",
    [
        {"layers": (6,)},
        {"layers": (-1,)},
        {"layers": (5,)},
        {"layers": (0, -1)},
        {"layers": (0, 6), "dimensions": 768},
        {"dimensions": 1},
        {"dimensions": 384},
        {"dtype": "ubinary", "dimensions": 16},
        {"dtype": "int8", "normalize": True},
        {"dtype": "float16", "outputs": ("tokens", "words", "static", "pooled")},
        {"inputs": (ids(1),), "outputs": ("tokens", "static")},
    ],
)
def test_sound_requests_pass(fields: dict[str, Any], manifest: Manifest) -> None:
    """At the edges of what is allowed."""
    check_encode(EncodeRequest(**{"inputs": (text(),), **fields}), manifest)


def test_a_kind_that_does_not_fit_the_model(manifest: Manifest) -> None:
    """501, with the kinds that do."""
    plain = manifest.model_copy(update={"attention_kinds": ("probs", "scores")})
    assert check_attend(AttendRequest((text(),)), plain).kind == "probs"
    with pytest.raises(Unsupported) as refused:
        check_attend(AttendRequest((text(),), kind="norm"), plain)
    assert refused.value.message == "kind norm does not fit this model; it has probs, scores."
    twice = (Occurrence("a", word=0), Occurrence("b", word=0))
    assert check_compare(CompareRequest(twice, draws_on=0), LIMITS, plain) == tuple(range(7))
    with pytest.raises(Unsupported, match=r"send draws_on: 0"):
        check_compare(CompareRequest(twice), LIMITS, plain)


@pytest.mark.parametrize(
    ("fields", "taken"),
    [
        ({"dtype": "sqrt_uint8", "wire": "base64"}, True),
        ({"dtype": "sqrt_uint8", "wire": "json"}, False),
        ({"dtype": "sqrt_uint8", "wire": "binary", "kind": "norm"}, False),
        ({"dtype": "sqrt_uint8", "wire": "binary", "kind": "norm", "special": "renormalize"}, True),
        ({"dtype": "sqrt_uint8", "wire": "binary", "kind": "projection", "special": "renormalize"}, False),
        ({"dtype": "sqrt_uint8", "wire": "binary", "kind": "projection", "layer_reduce": "rollout"}, True),
        ({"decimals": 3}, True),
        ({"decimals": 3, "wire": "base64"}, False),
        ({"decimals": 0}, False),
        ({"top_p": 1.0}, True),
        ({"top_p": 1.1}, False),
        ({"top_p": float("nan")}, False),
        ({"layers": ()}, False),
        ({"unit": "spans", "segments": "a_to_a", "inputs": (text("a", "b", ((0, 1),)),)}, False),
    ],
)
def test_how_numbers_of_maps_may_travel(manifest: Manifest, fields: dict[str, Any], taken: bool) -> None:
    """What fits the values, and what the door can spell."""
    request = AttendRequest(**({"inputs": (text(),)} | fields))
    if taken:
        check_attend(request, manifest)
    else:
        with pytest.raises(InvalidArgument):
            check_attend(request, manifest)
