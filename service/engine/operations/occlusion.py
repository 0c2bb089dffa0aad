"""Checks of the effect "occlusion", which encodes a text again without each of its units."""

from collections.abc import Mapping, Sequence

from service.engine.schema.labels import EFFECT_UNIT, ClassifyRequest, LabelEffect, RerankRequest
from service.engine.schema.model import Limits
from service.engine.schema.similarity import SimilarityUnit
from service.errors import ConflictingFields, RequestTooLarge

MAX_OCCLUDED_SEQUENCES = 4096
"""Sequences of one request with the effect "occlusion".

The scheduler takes about 10 microseconds for each on the event loop, so the limit bounds that time to about 40 ms.
"""


def check_effect_options(effect: LabelEffect, options: Mapping[str, object]) -> None:
    """Check that `options`, which an effect requires, are None without an effect."""
    for field, value in options.items():
        if effect == "none" and value is not None:
            raise ConflictingFields(
                "set, but effect is {effect.none}",
                f"Set effect to {{effect.occlusion}} or leave {field} out.",
                field=field,
            )


def effect_unit(request: ClassifyRequest | RerankRequest) -> SimilarityUnit | None:
    """Return the units of effects; None without an effect."""
    return None if request.effect == "none" else request.unit or EFFECT_UNIT


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
