"""Compare: the similarity of a word's occurrences in several texts, per layer."""

from typing import TYPE_CHECKING

from model.artifact.manifest import Manifest
from model.artifact.tokenizer import TokenizerInput
from service.engine.admission import count_characters, estimate_tokens
from service.engine.explain.compare import (
    CompareTask,
    OccurrenceTokens,
    compare_occurrences,
    comparison_bytes,
    find_occurrence,
)
from service.engine.explain.units import word_units
from service.engine.observer import Observation
from service.engine.operations.costs import OUTPUT, PAIR, describe_cost
from service.engine.operations.inputs import SPLIT, check_layers, check_length, check_span, check_text, require
from service.engine.schema.encode import Input
from service.engine.schema.explain import CompareRequest, CompareResponse
from service.engine.schema.model import Limits
from service.errors import OutOfRange, TooFew, TooMany, UnsupportedByModel, missing_or_conflicting
from service.spelling import Remedy

if TYPE_CHECKING:
    from service.engine.engine import Engine

MIN_OCCURRENCES, MAX_OCCURRENCES = 2, 64


async def compare(engine: "Engine", request: CompareRequest, deadline: float) -> CompareResponse:
    """Return similarities of a word's occurrences."""
    layers, lane = check_compare(request, engine.limits, engine.manifest), engine.explain
    inputs = [Input(TokenizerInput(text)) for text in dict.fromkeys(item.text for item in request.occurrences)]
    observation = Observation(lane.observer)
    sizes = estimate_tokens(map(count_characters, inputs), engine.manifest.max_input_tokens)
    cost = compare_cost(request, inputs, len(layers))
    with lane.reserve(sizes, deadline):
        tasks = await engine.run(cost, deadline, prepare, engine, request, inputs, len(layers))
        token_count, _ = observation.tokenized([task.tokens for task in tasks])
        job = lane.submit(tasks, deadline)
    vectors = await lane.wait(job)
    observation.ran(job.queue_s, job.batch_size)
    assert engine.static is not None
    occurrences, static, similarities = await engine.run(
        cost, deadline, compare_occurrences, tasks, vectors, layers, engine.static
    )
    timing = observation.finish()
    return CompareResponse(engine.name, lane.precision, occurrences, static, similarities, token_count, timing)


def check_compare(request: CompareRequest, limits: Limits, manifest: Manifest) -> tuple[int, ...]:
    """Check occurrences, layers and top_contributors; return the layers, 0..L."""
    for part in (manifest.explain, manifest.static):
        require(part, "Comparisons of words are not supported for this model")
    count = len(request.occurrences)
    if not MIN_OCCURRENCES <= count <= MAX_OCCURRENCES:
        kind, problem = (TooFew, "too few items") if count < MIN_OCCURRENCES else (TooMany, "too many items")
        raise kind(
            problem, f"Send {MIN_OCCURRENCES} to {MAX_OCCURRENCES}.",
            field="occurrences", actual=count, minimum=MIN_OCCURRENCES, maximum=MAX_OCCURRENCES,
        )  # fmt: skip
    for index, occurrence in enumerate(request.occurrences):
        path = f"occurrences[{index}]"
        check_text(occurrence.text, f"{path}.text", limits.max_input_characters, SPLIT)
        if (occurrence.span is None) == (occurrence.word_index is None):
            raise missing_or_conflicting(("span", "word_index"), occurrence.span is None, path)
        if occurrence.span is not None:
            check_span(occurrence.span, f"{path}.span", len(occurrence.text))
    if request.top_contributors < 0:
        raise OutOfRange(
            "out of range", "Use 0 or more.", field="top_contributors", actual=request.top_contributors, minimum=0
        )
    if request.top_contributors and "projection" not in manifest.attention_kinds:
        raise UnsupportedByModel(
            "not supported for this model (it has no kind projection)", "Set it to 0.", field="top_contributors"
        )
    if request.layers is None:
        return tuple(range(manifest.architecture.num_hidden_layers + 1))
    check_layers(request.layers, manifest)
    return tuple(layer % (manifest.architecture.num_hidden_layers + 1) for layer in request.layers)


def compare_cost(request: CompareRequest, inputs: list[Input], layers: int) -> int:
    """Return the cost of preparing a comparison, or of building its results; `inputs` are the distinct texts."""
    count = len(request.occurrences)
    return describe_cost(inputs) + OUTPUT * count + PAIR * layers * count * count


def prepare(engine: "Engine", request: CompareRequest, inputs: list[Input], layer_count: int) -> list[CompareTask]:
    """Tokenize the distinct texts and find the occurrences in them; return one task per text."""
    texts, tokenizer = [item.source.text for item in inputs], engine.tokenizer
    tokens = dict(zip(texts, tokenizer.encode([item.source for item in inputs]), strict=True))
    occurrences: dict[str, dict[int, OccurrenceTokens]] = {text: {} for text in texts}
    for index, occurrence in enumerate(request.occurrences):
        path, text = f"occurrences[{index}]", occurrence.text
        check_length(tokens[text], engine.manifest, None, f"{path}.text")
        occurrences[text][index] = find_occurrence(occurrence, tokens[text], path)
    tasks = [
        CompareTask(
            tokens[text],
            word_units(tokens[text], tokenizer.token_texts(tokens[text])),
            occurrences[text],
            request.top_contributors,
        )
        for text in texts
    ]
    sizes = [len(task.tokens) for task in tasks]
    engine.check_explain_size(sizes, maps=request.top_contributors > 0, path="occurrences")
    size = comparison_bytes(tasks, layer_count, request)
    remedy = Remedy("Send fewer occurrences or request fewer layers")
    engine.check_response_size(size, len(request.occurrences), lambda: remedy)
    return tasks
