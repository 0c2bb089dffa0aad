"""Merging the responses to the parts of a request."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from attendant_client.types import AttendResponse, EncodeResponse, TokenizeResponse

Response = TypeVar("Response", EncodeResponse, AttendResponse, TokenizeResponse)


def merge(responses: Sequence[Response]) -> Response:
    """Return one response with the results of all, in order."""
    if len(responses) == 1:
        return responses[0]
    results = [result for response in responses for result in response.results]
    merged = replace(responses[0], results=results)
    if isinstance(merged, EncodeResponse):
        parts = [response for response in responses if isinstance(response, EncodeResponse)]
        return replace(
            merged,
            token_count=sum(part.token_count for part in parts),
            truncated_inputs=sum(part.truncated_inputs for part in parts),
        )
    return merged
