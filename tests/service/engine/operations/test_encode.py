"""Validation of encode requests: fields against each other and against the model."""

from typing import Any

import pytest
from attendant_client.types import EncodeRequest, Input, Limits

from model.artifact.manifest import Manifest
from service.errors import InvalidArgument, NotFound, RequestTooLarge
from service.operations.encode import check_encode
from service.operations.inputs import AppliedPrompt, select_prompt
from tests.manifests import with_prompts

TEXT = Input("Sesame")
SPAN = Input("Sesame", spans=((0, 1),))
IDS = Input(token_ids=(1,))


def select(request: EncodeRequest, limits: Limits, manifest: Manifest) -> AppliedPrompt | None:
    """Select the prompt of a request."""
    return select_prompt(request.inputs, request.prompt_name, request.prompt, limits, manifest)


INVALID: list[tuple[dict[str, Any], str]] = [
    ({"outputs": ()}, "outputs: empty. Leave it out or name at least one."),
    ({"outputs": ("pooled", "pooled")}, "outputs: contains the same output twice."),
    ({"outputs": ("spans",)}, 'inputs[0].spans: missing, but outputs contains "spans". Send spans.'),
    ({"inputs": (SPAN, TEXT), "outputs": ("spans",)}, 'inputs[1].spans: missing, but outputs contains "spans".'),
    ({"inputs": (SPAN,)}, 'inputs[0].spans: set, but "spans" is missing from outputs. Add it.'),
    ({"inputs": (IDS,), "outputs": ("words",)}, 'outputs: "words" is not supported for token_ids.'),
    ({"layers": ()}, "layers: empty."),
    ({"layers": (7,)}, "layers[0]: out of range (7). Use 0 to 6, or -7 to -1 from the end."),
    ({"layers": (-1, -8)}, "layers[1]: out of range (-8)."),
    ({"layers": (6, -1)}, "layers: contains the same layer twice."),
    ({"layers": (0, 6), "dimensions": 769}, "dimensions: out of range (769). Use 1 to 768."),
    ({"layers": (0, 6), "layer_reduce": "mean", "dimensions": 385}, "dimensions: out of range (385)."),
    ({"layers": "all", "dimensions": 2689}, "dimensions: out of range (2689)."),
    ({"dimensions": 0}, "dimensions: out of range (0). Use 1 to 384."),
    ({"dimensions": 385}, "dimensions: out of range (385)."),
    ({"dimensions": 8, "outputs": ("tokens",)}, 'dimensions: set, but "pooled" is missing from outputs.'),
    ({"pooling": "cls", "outputs": ("tokens",)}, 'pooling: set, but "pooled" is missing from outputs.'),
    ({"dtype": "int8", "outputs": ("pooled", "words")}, 'dtype: "int8" is supported for pooled vectors only.'),
    ({"dtype": "int8", "normalize": False}, 'dtype: "int8" requires normalized vectors.'),
    ({"dtype": "ubinary", "dimensions": 12}, 'dimensions: "ubinary" requires a multiple of 8 (12).'),
]


@pytest.mark.parametrize(("fields", "message"), INVALID, ids=[message[:60] for _, message in INVALID])
def test_requests_are_rejected(fields: dict[str, Any], message: str, manifest: Manifest) -> None:
    with pytest.raises(InvalidArgument) as raised:
        check_encode(EncodeRequest(**{"inputs": (TEXT,), **fields}), manifest)
    assert raised.value.message.startswith(message)
    assert message.startswith(f"{raised.value.field}: ")


@pytest.mark.parametrize(
    "fields",
    [
        {"layers": (6,)},
        {"layers": (-1,)},
        {"layers": (5,)},
        {"layers": (0, -1)},
        {"layers": "all"},
        {"layers": (0, 6), "dimensions": 768},
        {"dimensions": 1},
        {"dimensions": 384},
        {"dtype": "ubinary", "dimensions": 16},
        {"dtype": "int8", "normalize": True},
        {"dtype": "float16", "outputs": ("tokens", "words", "static", "pooled")},
        {"inputs": (IDS,), "outputs": ("tokens", "static")},
    ],
)
def test_requests_at_the_limit_are_accepted(fields: dict[str, Any], manifest: Manifest) -> None:
    assert check_encode(EncodeRequest(**{"inputs": (TEXT,), **fields}), manifest).layers


def test_all_layers_are_made_explicit(manifest: Manifest) -> None:
    assert check_encode(EncodeRequest((TEXT,), layers="all"), manifest).layers == (0, 1, 2, 3, 4, 5, 6)


@pytest.fixture
def prompted(manifest: Manifest) -> Manifest:
    """A manifest with two prompts, one of them the default."""
    prompts = {"query": "query: ", "document": "passage: "}
    return with_prompts(manifest, prompts, "document")


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, AppliedPrompt("document", "passage: ")),
        ({"prompt_name": "query"}, AppliedPrompt("query", "query: ")),
        ({"prompt": "Find: "}, AppliedPrompt(None, "Find: ")),
        ({"prompt": ""}, None),
    ],
)
def test_prompt_is_selected(
    limits: Limits, prompted: Manifest, fields: dict[str, Any], expected: AppliedPrompt | None
) -> None:
    assert select(EncodeRequest((TEXT,), **fields), limits, prompted) == expected


def test_prompt_is_none_for_a_model_without_prompts(limits: Limits, manifest: Manifest) -> None:
    assert select(EncodeRequest((TEXT,)), limits, manifest) is None


def test_unknown_prompt_is_rejected(limits: Limits, prompted: Manifest, manifest: Manifest) -> None:
    with pytest.raises(NotFound) as raised:
        select(EncodeRequest((TEXT,), prompt_name="Sesame"), limits, prompted)
    assert raised.value.message == 'prompt_name: not found ("Sesame"). Use one of "query", "document".'
    with pytest.raises(NotFound) as raised:
        select(EncodeRequest((TEXT,), prompt_name="query"), limits, manifest)
    assert raised.value.message == 'prompt_name: not found ("query"). Leave it out: the model has no prompts.'


def test_prompt_and_prompt_name_are_exclusive(limits: Limits, prompted: Manifest) -> None:
    with pytest.raises(InvalidArgument, match=r"^prompt_name: set together with prompt"):
        select(EncodeRequest((TEXT,), prompt_name="query", prompt="a"), limits, prompted)


def test_token_ids_get_no_default_prompt_and_reject_others(limits: Limits, prompted: Manifest) -> None:
    assert select(EncodeRequest((IDS,)), limits, prompted) == AppliedPrompt("document", "passage: ")
    with pytest.raises(InvalidArgument, match=r"^prompt_name: not supported for token_ids"):
        select(EncodeRequest((TEXT, IDS), prompt_name="query"), limits, prompted)


def test_prompt_over_the_limit_of_characters_is_rejected(manifest: Manifest, limits: Limits) -> None:
    with pytest.raises(RequestTooLarge, match=r"^prompt: too many characters \(21, limit 20\)\. Shorten it\.$"):
        select(EncodeRequest((TEXT,), prompt="a" * 21), limits, manifest)
