"""Validation of attend and compare requests."""

from typing import Any

import pytest
from attendant_client.types import AttendRequest, CompareRequest, Input, Limits, Occurrence

from model.artifact.manifest import Attention, Manifest
from service.errors import InvalidArgument, ServiceError, UnsupportedByModel
from service.operations.attend import check_attend
from service.operations.compare import check_compare
from service.operations.inputs import Call, Wire
from service.operations.maps import AttentionMapSpec
from tests.manifests import with_kinds

TEXT = Input("Sesame")
PAIR = Input("a", "b")
SPAN = Input("Sesame", spans=((0, 1),))
IDS = Input(token_ids=(1,))

INVALID: list[tuple[dict[str, Any], str]] = [
    ({"layers": ()}, "layers: empty."),
    ({"layers": (0,)}, "layers[0]: out of range (0). Use 1 to 6, or -6 to -1 from the end."),
    ({"layers": (1, 7)}, "layers[1]: out of range (7)."),
    ({"layers": (-7,)}, "layers[0]: out of range (-7)."),
    ({"layers": (6, -1)}, "layers: contains the same layer twice."),
    ({"heads": ()}, "heads: empty."),
    ({"heads": (12,)}, "heads[0]: out of range (12). Use 0 to 11."),
    ({"heads": (0, -1)}, "heads[1]: out of range (-1)."),
    ({"heads": (1, 1)}, "heads: contains the same head twice."),
    ({"head_reduce": "sum"}, 'head_reduce: "sum" is not supported for kind "probs". Use "none", "mean" or "max".'),
    ({"kind": "norm", "head_reduce": "max"}, 'head_reduce: "max" is not supported for kind "norm".'),
    ({"kind": "projection", "heads": (1,)}, 'heads: kind "projection" always covers all heads. Leave it out.'),
    (
        {"kind": "scores", "layer_reduce": "rollout"},
        'layer_reduce: "rollout" is not supported for kind "scores" (rows do not sum to 1). Use "none" or "mean".',
    ),
    (
        {"layer_reduce": "rollout", "head_reduce": "max"},
        'head_reduce: "max" is not supported with layer_reduce "rollout".',
    ),
    ({"unit": "span"}, 'inputs[0].spans: missing, but unit is "span". Send spans.'),
    ({"inputs": (SPAN,)}, 'inputs[0].spans: set, but unit is "token". Set unit to "span".'),
    ({"inputs": (IDS,), "unit": "word"}, 'unit: "word" is not supported for token_ids. Use "token".'),
    ({"segments": "a_to_b"}, 'inputs[0].pair: missing, but segments is "a_to_b".'),
    (
        {"inputs": (Input("a", "b", ((0, 1),)),), "unit": "span", "segments": "a_to_a"},
        'segments: "a_to_a" is not supported with unit "span" (spans are in the first text). Use "all".',
    ),
    (
        {"kind": "scores", "special_tokens": "renormalize"},
        'special_tokens: "renormalize" is not supported for kind "scores" (rows do not sum to 1).',
    ),
    ({"kind": "scores", "top_k": 1}, 'top_k: not supported for kind "scores" (rows do not sum to 1).'),
    ({"top_p": 1.1}, "top_p: out of range (1.1). Use a number above 0 and at most 1."),
    ({"top_p": float("nan")}, "top_p: out of range"),
    ({"top_k": 0}, "top_k: out of range (0, minimum 1)."),
    ({"decimals": 0}, "decimals: out of range (0). Use 1 to 9."),
    ({"dtype": "sqrt_uint8", "wire": "binary", "kind": "norm"}, 'dtype: "sqrt_uint8" requires values from 0 to 1'),
    (
        {"dtype": "sqrt_uint8", "wire": "binary", "kind": "projection", "special_tokens": "renormalize"},
        'dtype: "sqrt_uint8" requires values from 0 to 1',
    ),
]


def check(manifest: Manifest, wire: Wire = "json", **fields: Any) -> AttentionMapSpec:
    return check_attend(AttendRequest(**{"inputs": (TEXT,), **fields}), Call(wire=wire), manifest)


@pytest.mark.parametrize(("fields", "message"), INVALID, ids=[message[:60] for _, message in INVALID])
def test_attend_requests_are_rejected(manifest: Manifest, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgument) as raised:
        check(manifest, **fields)
    assert raised.value.message.startswith(message)
    assert message.startswith(f"{raised.value.field}: ")


@pytest.mark.parametrize(
    "fields",
    [
        {"dtype": "sqrt_uint8", "wire": "base64"},
        {"dtype": "sqrt_uint8", "wire": "binary", "kind": "norm", "special_tokens": "renormalize"},
        {"dtype": "sqrt_uint8", "wire": "binary", "kind": "projection", "layer_reduce": "rollout"},
        {"decimals": 3},
        {"top_p": 1.0},
        {"inputs": (PAIR,), "segments": "b_to_a"},
    ],
)
def test_attend_requests_at_the_limit_are_accepted(manifest: Manifest, fields: dict[str, Any]) -> None:
    check(manifest, **fields)


def test_negative_layers_count_from_the_end(manifest: Manifest) -> None:
    assert check(manifest, layers=(-1, -6)).layers == (6, 1)


def test_kinds_that_the_model_lacks_are_unsupported(manifest: Manifest, limits: Limits) -> None:
    plain = with_kinds(manifest, "probs", "scores")
    assert check(plain).kind == "probs"
    with pytest.raises(UnsupportedByModel) as raised:
        check(plain, kind="norm")
    assert raised.value.message == 'kind: "norm" is not supported for this model. Use "probs" or "scores".'
    assert raised.value.actual == "norm"
    occurrences = (Occurrence("a", word_index=0), Occurrence("b", word_index=0))
    assert check_compare(CompareRequest(occurrences, top_contributors=0), limits, plain) == tuple(range(7))
    with pytest.raises(UnsupportedByModel, match=r"^top_contributors: .* Set it to 0\.$"):
        check_compare(CompareRequest(occurrences), limits, plain)


@pytest.mark.parametrize(
    ("attention", "reason"), [("causal", "its attention is causal"), ("bidirectional", "its attention has windows")]
)
def test_unsupported_scores_name_the_reason(manifest: Manifest, attention: Attention, reason: str) -> None:
    plain = with_kinds(manifest, "probs", "norm")
    architecture = plain.architecture.model_copy(update={"attention": attention})
    with pytest.raises(UnsupportedByModel) as raised:
        check(plain.model_copy(update={"architecture": architecture}), kind="scores")
    assert raised.value.message == (
        f'kind: "scores" is not supported for this model, because {reason}. Use "probs" or "norm".'
    )


WORD = Occurrence("a", word_index=0)
INVALID_COMPARISONS: list[tuple[dict[str, Any], str]] = [
    ({"occurrences": (WORD,)}, "occurrences: too few items (1). Send 2 to 64."),
    ({"occurrences": (WORD,) * 65}, "occurrences: too many items (65)."),
    ({"occurrences": (WORD, Occurrence("a"))}, "occurrences[1]: span and word_index are both missing."),
    ({"occurrences": (Occurrence("a", (0, 1), 0), WORD)}, "occurrences[0]: span and word_index are both set."),
    ({"occurrences": (Occurrence("a", (0, 2)), WORD)}, "occurrences[0].span: ends after the text (2 characters"),
    ({"occurrences": (WORD, Occurrence(" ", (0, 1)))}, "occurrences[1].text: empty or blank."),
    ({"top_contributors": -1}, "top_contributors: out of range (-1, minimum 0)."),
    ({"layers": (7,)}, "layers[0]: out of range (7)."),
]


@pytest.mark.parametrize(
    ("fields", "message"), INVALID_COMPARISONS, ids=[message[:60] for _, message in INVALID_COMPARISONS]
)
def test_compare_requests_are_rejected(
    manifest: Manifest, limits: Limits, fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(ServiceError) as raised:
        check_compare(CompareRequest(**{"occurrences": (WORD, WORD), **fields}), limits, manifest)
    assert raised.value.message.startswith(message)
    assert message.startswith(f"{raised.value.field}: ")
