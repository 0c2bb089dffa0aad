"""The limits of the effect "occlusion", which encodes a text again without each of its units."""

from collections.abc import Sequence

from service.engine.schema.model import Limits
from service.errors import RequestTooLarge

MAX_OCCLUDED_SEQUENCES = 4096
"""Sequences of one request with the effect "occlusion".

The scheduler takes about 10 microseconds for each on the event loop, so the limit bounds that time to about 40 ms.
"""


def check_occlusion(sizes: Sequence[int], limits: Limits, remedy: str) -> None:
    """Check the cost of occlusion; `sizes` are the numbers of tokens of the occluded sequences."""
    for noun, actual, limit in (
        ("sequences", len(sizes), MAX_OCCLUDED_SEQUENCES),
        ("tokens", sum(sizes), limits.max_queue_tokens),
    ):
        if actual > limit:
            raise RequestTooLarge(
                f"{{effect.occlusion}} needs too many {noun}", f"{remedy}.",
                field="effect", actual=actual, maximum=limit,
            )  # fmt: skip


def occlusion_tokens(sizes: Sequence[int], limits: Limits) -> int:
    """Return the estimated tokens of the occlusion of texts of these sizes, at most `max_queue_tokens`."""
    return min(sum(size * size for size in sizes), limits.max_queue_tokens)
