"""Similarity requests: texts, pairs, dimensions, prompts, and the cost of an explanation."""

from model.manifest import Manifest
from model.tokenizer import TokenizerInput
from service.engine.schema.encode import Input, Limits
from service.engine.schema.similarity import SimilarityRequest, SimilaritySpec, UnavailableReason
from service.engine.validation.encode import find_prompt
from service.engine.validation.inputs import check_text
from service.errors import ConflictingFields, Empty, OutOfRange, RequestTooLarge, TooMany, Unsupported, WrongShape

MAX_EXPLAINED_PAIRS = 256
MAX_OCCLUDED_SEQUENCES = 4096
"""Sequences of one request with the effect "occlusion".

The scheduler takes about 10 microseconds for each on the event loop, so the limit bounds that time to about 40 ms.
"""


def check_similarity(request: SimilarityRequest, limits: Limits, manifest: Manifest, *, linear: bool) -> SimilaritySpec:
    """Check all fields; `linear`: whether the dense layers of the model are linear."""
    _check_texts(request, limits)
    if request.pairs == "zip" and len(request.queries) != len(request.documents):
        value = request.spelling.value("pairs", "zip")
        raise WrongShape(
            f"{value} requires as many documents as queries", "Send one document per query.",
            field="documents", actual=len(request.documents),
            minimum=len(request.queries), maximum=len(request.queries),
        )  # fmt: skip
    dimensions = request.dimensions
    if dimensions is not None and not 1 <= dimensions <= manifest.dimensions:
        raise OutOfRange(
            "out of range", f"Use 1 to {manifest.dimensions}.",
            field="dimensions", actual=dimensions, minimum=1, maximum=manifest.dimensions,
        )  # fmt: skip
    spec = SimilaritySpec(
        request.similarity or manifest.similarity,
        find_prompt(request.query_prompt_name, request.query_prompt, limits, manifest, "query"),
        find_prompt(request.document_prompt_name, request.document_prompt, limits, manifest, "document"),
        _unavailable(manifest, linear),
    )
    if request.explain:
        _check_explanation(request, manifest)
    else:
        _check_no_explanation(request)
    return spec


def _check_texts(request: SimilarityRequest, limits: Limits) -> None:
    spell = request.spelling.side
    for side in ("queries", "documents"):
        texts, field = getattr(request, side), spell(side)
        if not texts:
            raise Empty("empty", "Send at least one text.", field=field)
        count = len(texts) if side == "queries" else len(texts) + len(request.queries)
        if count > limits.max_inputs:
            raise TooMany(
                "too many items" if side == "queries" else f"too many items, together with {spell('queries')}",
                "Split the request.", field=field, actual=count, maximum=limits.max_inputs,
            )  # fmt: skip
        for index, text in enumerate(texts):
            check_text(Input(TokenizerInput(text)), spell(side, index), limits.max_input_characters)


def _unavailable(manifest: Manifest, linear: bool) -> UnavailableReason | None:
    if manifest.pooling == "max":
        return "max_pooling"
    return None if linear else "nonlinear_dense_layers"


def _check_explanation(request: SimilarityRequest, manifest: Manifest) -> None:
    if request.pair_count > MAX_EXPLAINED_PAIRS:
        raise TooMany(
            "too many pairs to explain", "Send fewer queries or documents.",
            field="explain", actual=request.pair_count, maximum=MAX_EXPLAINED_PAIRS,
        )  # fmt: skip
    if request.top_k is not None and request.top_k < 1:
        raise OutOfRange("out of range", "Use 1 or more.", field="top_k", actual=request.top_k, minimum=1)
    if request.effect == "leave_one_out" and manifest.pooling == "cls":
        spell = request.spelling.value
        raise Unsupported(
            f"{spell('effect', 'leave_one_out')} is not supported for this model (cls pooling uses one token)",
            f"Use {spell('effect', 'occlusion')}.", field="effect",
        )  # fmt: skip


def _check_no_explanation(request: SimilarityRequest) -> None:
    fields = {"unit": request.unit != "token", "top_k": request.top_k is not None, "effect": request.effect != "none"}
    for field, is_set in fields.items():
        if is_set:
            raise ConflictingFields(
                "set, but explain is false", f"Set explain to true or leave {field} out.", field=field
            )


def check_explanation_size(request: SimilarityRequest, sizes: list[int], manifest: Manifest, limits: Limits) -> None:
    """Check the memory of an explanation; `sizes` are the numbers of tokens of all texts.

    In float32, there is a vector per token, one for its contributions, and one for its effect.
    """
    vectors = 2 if request.effect == "none" else 3
    size, limit = 4 * vectors * sum(sizes) * manifest.hidden_size, limits.max_response_bytes
    if size > limit:
        raise RequestTooLarge(
            "token vectors too large", "Send fewer or shorter texts.",
            field="explain", actual=size, maximum=limit, unit="bytes",
        )  # fmt: skip


def check_occlusion(request: SimilarityRequest, sizes: list[int], manifest: Manifest, limits: Limits) -> None:
    """Check the cost of occlusion; `sizes` are the numbers of tokens of the occluded sequences."""
    spell = request.spelling.value
    occlusion, remedy = spell("effect", "occlusion"), "Send fewer or shorter texts"
    if request.unit == "token":
        remedy += f", or set unit to {spell('unit', 'word')}"
    if manifest.pooling != "cls":
        remedy += f", or use {spell('effect', 'leave_one_out')}"
    for noun, actual, limit in (
        ("sequences", len(sizes), MAX_OCCLUDED_SEQUENCES),
        ("tokens", sum(sizes), limits.max_queue_tokens),
    ):
        if actual > limit:
            raise RequestTooLarge(
                f"{occlusion} needs too many {noun}", f"{remedy}.", field="effect", actual=actual, maximum=limit
            )
