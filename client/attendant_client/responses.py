"""Merging the responses to a split request."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from attendant_client.label_types import ClassifyResponse, TokenClassifyResponse
from attendant_client.types import AttendResponse, EncodeResponse, TokenizeResponse
from attendant_client.word_types import FillMaskResponse

Response = TypeVar(
    "Response",
    EncodeResponse,
    AttendResponse,
    ClassifyResponse,
    TokenClassifyResponse,
    FillMaskResponse,
    TokenizeResponse,
)


def merge(responses: Sequence[Response]) -> Response:
    """Return one response with all results, in order."""
    if len(responses) == 1:
        return responses[0]
    results = [result for response in responses for result in response.results]
    sums = {
        name: sum(getattr(response, name) for response in responses)
        for name in ("token_count", "truncated_inputs")
        if hasattr(responses[0], name)
    }
    return replace(responses[0], results=results, **sums)
