"""Validation of inputs. Errors name the field, the actual value, the limit and the remedy, but never quote the
input.
"""

import pytest
from attendant_client.types import Input, Limits

from model.artifact.manifest import Manifest
from service.errors import ServiceError
from service.operations.inputs import check_inputs
from tests.manifests import with_architecture

SECRET = "Sesame"


def text(content: str = SECRET, pair: str | None = None, spans: tuple[tuple[int, int], ...] = ()) -> Input:
    return Input(content, pair, spans)


def ids(*numbers: int, spans: tuple[tuple[int, int], ...] = ()) -> Input:
    return Input(spans=spans, token_ids=numbers)


@pytest.fixture
def small(manifest: Manifest) -> Manifest:
    """A manifest with 100 token ids."""
    return with_architecture(manifest, vocab_size=100)


INVALID: list[tuple[list[Input], str, str]] = [
    ([], "EMPTY", "inputs: empty. Send at least one item."),
    ([text()] * 5, "TOO_MANY", "inputs: too many items (5, limit 4). Split the request."),
    ([text(), text("")], "EMPTY", "inputs[1]: empty or blank. Send text."),
    ([text(" \t\u3000\n")], "EMPTY", "inputs[0]: empty or blank. Send text."),
    ([text("a" * 21)], "TOO_LONG", "inputs[0]: too many characters (21, limit 20). Split the text."),
    ([text("a", "b" * 21)], "TOO_LONG", "inputs[0].pair: too many characters (21, limit 20)."),
    ([text(spans=((0, 7),))], "OUT_OF_RANGE", "inputs[0].spans[0]: ends after the text (7 characters, limit 6"),
    ([text(spans=((0, 1), (2, 2)))], "OUT_OF_RANGE", "inputs[0].spans[1]: empty or negative range."),
    ([text(spans=((-1, 2),))], "OUT_OF_RANGE", "inputs[0].spans[0]: empty or negative range."),
    ([text(spans=((3, 2),))], "OUT_OF_RANGE", "inputs[0].spans[0]: empty or negative range."),
    ([ids()], "EMPTY", "inputs[0].token_ids: empty. Send at least one id."),
    ([ids(*[1] * 21)], "TOO_LONG", "inputs[0].token_ids: too many items (21, limit 20)."),
    ([ids(1, 100)], "OUT_OF_RANGE", "inputs[0].token_ids: id outside of the vocabulary (100)."),
    ([ids(-1)], "OUT_OF_RANGE", "inputs[0].token_ids: id outside of the vocabulary (-1)."),
    ([ids(1, spans=((0, 1),))], "CONFLICTING_FIELDS", "inputs[0].spans: not supported with token_ids. Send text."),
    ([text(), text("a", " ")], "EMPTY", "inputs[1].pair: empty or blank."),
    ([text("a", "")], "EMPTY", "inputs[0].pair: empty or blank."),
    ([text(spans=((0, 1),) * 4)], "TOO_MANY", "inputs[0].spans: too many items (4, limit 3)."),
    ([text(spans=((0, 1),) * 3)] * 2, "TOO_MANY", "inputs: too many spans in the request (6, limit 5)."),
]


@pytest.mark.parametrize(("inputs", "reason", "message"), INVALID, ids=[message[:60] for _, _, message in INVALID])
def test_inputs_are_rejected(small: Manifest, limits: Limits, inputs: list[Input], reason: str, message: str) -> None:
    with pytest.raises(ServiceError) as raised:
        check_inputs(inputs, limits, small, spans=True)
    error = raised.value
    assert error.reason == reason
    assert error.message.startswith(message)
    assert error.field is not None
    assert message.startswith(f"{error.field}: ")
    if error.maximum is not None:
        assert f"({error.actual}" in message
        assert f"limit {error.maximum}" in message or error.minimum is not None
    assert SECRET not in error.message


def test_inputs_at_the_limit_are_accepted(small: Manifest, limits: Limits) -> None:
    inputs = [text("a" * 20, "b" * 20), text(spans=((0, 6),)), ids(*([0, 99] * 10)), text()]
    check_inputs(inputs, limits, small, spans=True)
