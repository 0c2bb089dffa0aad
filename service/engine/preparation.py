"""Preparation of requests: tokenization, units, and the size of the response, before inference."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from model.tokenizer import TokenizedInput, TokenizerInput
from service.engine.admission import estimate_tokens
from service.engine.costs import INPUT
from service.engine.encode.alignment import describe_tokens, words_of
from service.engine.encode.response import (
    JSON_CHARACTER_BYTES,
    LayerTask,
    PreparedInput,
    encode_tasks,
    least_response_bytes,
    listed_bytes,
    prepare_input,
    response_bytes,
    suggest_smaller_vectors,
)
from service.engine.explain.attend import AttendTask, maps_bytes, suggest_smaller_maps
from service.engine.explain.compare import CompareTask, OccurrenceTokens, comparison_bytes, find_occurrence
from service.engine.explain.contributions import Embedder
from service.engine.explain.similarity import ComparedText, PreparedSimilarity
from service.engine.explain.units import find_units, word_units
from service.engine.model_loader import LoadedModel
from service.engine.schema.decode import DecodeRequest
from service.engine.schema.encode import (
    AppliedPrompt,
    EncodeRequest,
    EncodeTask,
    Limits,
    TokenizeRequest,
    TokenizeResult,
)
from service.engine.schema.explain import AttendRequest, AttentionMapSpec, CompareRequest
from service.engine.schema.similarity import SimilarityRequest, SimilaritySpec
from service.engine.validation.inputs import check_length, check_prompt_length
from service.engine.validation.similarity import check_explanation_size, check_occlusion
from service.errors import RequestTooLarge, ResponseTooLarge


class Preparation:
    """The work before inference. It runs on the event loop for small requests, in a thread for large ones."""

    def __init__(self, model: LoadedModel, limits: Limits) -> None:
        self._tokenizer = model.tokenizer
        self._manifest = model.artifact.manifest
        self._dense_layers = model.dense_layers
        self._limits = limits
        self._prompt_tokens: dict[str, int] = {}  # of the prompts of the model

    def encode(
        self, request: EncodeRequest, prompt: AppliedPrompt | None, *, last: bool
    ) -> tuple[list[PreparedInput], Sequence[EncodeTask | LayerTask]]:
        """Return the results of the inputs without their vectors, and the tasks; see `encode_tasks`."""
        sources = [item.source for item in request.inputs]
        if prompt is not None:
            sources = [
                source if source.token_ids is not None else replace(source, prompt=prompt.text) for source in sources
            ]
        tokenized = self._tokenize(sources, request, offsets=request.outputs != ("pooled",))
        prepared = [
            prepare_input(item, tokens, request, self._tokenizer, f"{request.spelling.inputs}[{index}]")
            for index, (item, tokens) in enumerate(zip(request.inputs, tokenized, strict=True))
        ]
        size = response_bytes(prepared, request, self._manifest)
        remedy = partial(suggest_smaller_vectors, prepared, request, self._manifest, self._limits.max_response_bytes)
        self._check_response_size(size, len(prepared), remedy)
        return prepared, encode_tasks(request, self._manifest, prepared, last=last)

    def check_least_response(self, request: EncodeRequest) -> None:
        """Raise `ResponseTooLarge` for a response that is too large whatever the texts are: a retry cannot succeed."""
        size = least_response_bytes(request, self._manifest)
        self._check_response_size(size, len(request.inputs), lambda: "Request fewer inputs, spans or layers.")

    def count_prompt(self, prompt: AppliedPrompt, inputs: int, field: str) -> int:
        """Return the number of tokens of a prompt, without special tokens.

        Raises `TooLong` if it leaves no room for text, and `RequestTooLarge` if its copies, one per input, have
        more characters than the largest request.
        """
        characters, limit = len(prompt.text) * inputs, self._limits.max_request_bytes
        if characters > limit:
            raise RequestTooLarge(
                f"too many characters for {inputs} inputs", "Shorten it or send fewer inputs.",
                field=field, actual=characters, maximum=limit, reason="TOO_LONG",
            )  # fmt: skip
        if prompt.name is not None and prompt.name in self._prompt_tokens:
            return self._prompt_tokens[prompt.name]
        (empty, tokens) = self._tokenizer.encode([TokenizerInput(""), TokenizerInput(prompt.text)], offsets=False)
        check_prompt_length(len(tokens) - len(empty), len(tokens), self._manifest, field)
        if prompt.name is not None:
            self._prompt_tokens[prompt.name] = len(tokens) - len(empty)
        return len(tokens) - len(empty)

    def attend(self, request: AttendRequest, spec: AttentionMapSpec) -> list[AttendTask]:
        """Return one task per input."""
        tasks, options = [], replace(request, inputs=())
        tokenized = self._tokenize([item.source for item in request.inputs], request)
        for index, (item, tokens) in enumerate(zip(request.inputs, tokenized, strict=True)):
            path = f"{request.spelling.inputs}[{index}]"
            units = find_units(item, tokens, self._tokenizer.token_texts(tokens), request, path)
            tasks.append(AttendTask(tokens, units, spec, options))
        size = maps_bytes(tasks)
        remedy = partial(suggest_smaller_maps, tasks, self._limits.max_response_bytes)
        self._check_response_size(size, len(tasks), remedy)
        return tasks

    def compare(self, request: CompareRequest, layer_count: int) -> list[CompareTask]:
        """Return one task per distinct text, with the occurrences in it."""
        occurrences: dict[str, dict[int, OccurrenceTokens]] = {}
        texts = list(dict.fromkeys(occurrence.text for occurrence in request.occurrences))
        tokens = dict(zip(texts, self._tokenizer.encode([TokenizerInput(text) for text in texts]), strict=True))
        for index, occurrence in enumerate(request.occurrences):
            path = f"occurrences[{index}]"
            check_length(tokens[occurrence.text], self._manifest, "error", f"{path}.text", "Shorten it.")
            item = find_occurrence(occurrence, tokens[occurrence.text], path)
            occurrences.setdefault(occurrence.text, {})[index] = item
        tasks = [
            CompareTask(
                tokens[text],
                word_units(tokens[text], self._tokenizer.token_texts(tokens[text])),
                text_occurrences,
                request.top_contributors,
            )
            for text, text_occurrences in occurrences.items()
        ]
        size = comparison_bytes(tasks, layer_count, request)
        remedy = "Send fewer occurrences or request fewer layers."
        self._check_response_size(size, len(request.occurrences), lambda: remedy)
        return tasks

    def similarity(
        self, request: SimilarityRequest, spec: SimilaritySpec
    ) -> tuple[PreparedSimilarity, list[EncodeTask]]:
        """Return the texts with their units, and the tasks of the fast lane."""
        manifest = self._manifest
        texts = []
        for side, prompt, prompt_field in (
            ("queries", spec.query_prompt, "query_prompt"),
            ("documents", spec.document_prompt, "document_prompt"),
        ):
            sources = [
                TokenizerInput(text, prompt="" if prompt is None else prompt.text) for text in getattr(request, side)
            ]
            for index, tokens in enumerate(self._tokenizer.encode(sources)):
                path = request.spelling.side(side, index)
                remedy = request.spelling.shorten
                checked = check_length(tokens, manifest, request.truncation, path, remedy, prompt_field)
                unit = request.unit if request.explain else None
                texts.append(ComparedText.of(checked, self._tokenizer, manifest, unit))
        unit_length = spec.similarity == "cosine" or manifest.normalize
        embedder = Embedder(self._dense_layers, request.dimensions, unit_length)
        prepared = PreparedSimilarity(request, spec, manifest, embedder, texts)
        if request.explain:
            check_explanation_size(request, [len(text.tokens) for text in texts], manifest, self._limits)
        if request.effect == "occlusion":
            check_occlusion(request, prepared.occluded_sizes(), manifest, self._limits)
        top_k = "Set top_k" if request.top_k is None else "Reduce top_k"
        change = f"{top_k}, or send fewer or shorter texts." if request.explain else "Send fewer texts."
        self._check_response_size(prepared.response_bytes(), 0, lambda: change)
        return prepared, prepared.tasks()

    def tokenize(self, request: TokenizeRequest) -> list[TokenizeResult]:
        """Return the tokens and words of the inputs."""
        results, size = [], 0
        for item in request.inputs:  # one at a time, to stop as soon as the response exceeds the limit
            (tokens,) = self._tokenizer.encode([item.source])
            words = words_of(tokens)
            described = describe_tokens(tokens, self._tokenizer.token_texts(tokens), words)
            size += listed_bytes((*described, *words), request.wire)
            self._check_response_size(size, len(request.inputs), lambda: "Send fewer inputs.")
            results.append(TokenizeResult(len(tokens), described, words))
        return results

    def decode(self, request: DecodeRequest) -> list[str]:
        """Return the texts of the token ids."""
        texts, size = [], 0
        for token_ids in request.token_ids:
            text = self._tokenizer.decode(token_ids, skip_special_tokens=request.skip_special_tokens)
            size += len(text) * JSON_CHARACTER_BYTES
            self._check_response_size(size, len(request.token_ids), lambda: "Send fewer lists.")
            texts.append(text)
        return texts

    def _tokenize(
        self, sources: Sequence[TokenizerInput], request: EncodeRequest | AttendRequest, *, offsets: bool = True
    ) -> list[TokenizedInput]:
        field, remedy = request.spelling.inputs, request.spelling.shorten
        return [
            check_length(tokens, self._manifest, request.truncation, f"{field}[{index}]", remedy)
            for index, tokens in enumerate(self._tokenizer.encode(sources, offsets=offsets))
        ]

    def _check_response_size(self, size: int, inputs: int, remedy: Callable[[], str]) -> None:
        limit = self._limits.max_response_bytes
        if size > limit:
            fitting = inputs * limit // size
            hint = f" About {fitting} of these {inputs} inputs fit." if fitting else ""
            raise ResponseTooLarge("Response too large", remedy() + hint, actual=size, maximum=limit, unit="bytes")


PAIR_CHARACTERS = 256
"""An explained pair takes at least as long as the preparation of this many characters."""
PRODUCTS_PER_CHARACTER = 8
"""Pairs of tokens that are multiplied in the time of the preparation of one character."""
PRODUCTS_PER_TOKEN = 3_000
"""Pairs of tokens that are multiplied in the time of the inference of one token, in bfloat16 with AMX."""


def similarity_cost(
    request: SimilarityRequest, spec: SimilaritySpec, prompt_tokens: tuple[int, int], limits: Limits, max_tokens: int
) -> tuple[int, list[int], int]:
    """Return the cost of preparation in characters, and the estimated tokens of each text and of the explanation.

    The tokens of the explanation are at most `max_queue_tokens`. `prompt_tokens` counts the query prompt and the
    document prompt.
    """
    prompts = [0 if prompt is None else len(prompt.text) for prompt in (spec.query_prompt, spec.document_prompt)]
    texts = [(text, 0) for text in request.queries] + [(text, 1) for text in request.documents]
    size = sum(INPUT + len(text) + prompts[side] for text, side in texts)
    tokens = [estimate_tokens((len(text),), max_tokens, prompt_tokens[side])[0] for text, side in texts]
    explanation = 0
    if request.explain:
        size += PAIR_CHARACTERS * request.pair_count
        queries = len(request.queries)
        products = sum(tokens[query] * tokens[queries + document] for query, document in request.index_pairs())
        explanation += products // PRODUCTS_PER_TOKEN
        size += products // PRODUCTS_PER_CHARACTER
        if request.effect == "occlusion":
            occluded = sum(count * count for count in tokens)
            explanation += occluded
            size += occluded
    return size, tokens, min(explanation, limits.max_queue_tokens)
