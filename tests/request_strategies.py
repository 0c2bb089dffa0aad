"""Requests that combine all fields, as JSON bodies and as gRPC messages.

The limits come from `/v1/model`. Most requests are valid. Some have conflicting fields, which both APIs must reject.
"""

from dataclasses import dataclass
from typing import Any, get_args

from hypothesis import strategies as st

from model.artifact.manifest import KINDS, POOLINGS
from service.engine.schema.encode import DType, LayerReduce, MapDType, Side
from service.engine.schema.explain import HeadReduce, MapLayerReduce, Segments, SpecialTokens, UnitKind
from service.engine.schema.operations import Output
from service.engine.schema.similarity import Effect, Pairs, SimilarityFunction, SimilarityUnit

Body = dict[str, Any]
WORDS = (
    "river", "Bank", "LÄUFT", "déjà", "money,", "don't", "x" * 70, "a-b", "42", "3.14", "...", "?!", "漢字", "かな",
    "한국어", "ไทย", "नमस्ते", "שלום", "مرحبا", "\u202eabc\u202c", "\ufdfa", "ﬁ", "İ", "ß", "½", "\U0001d54f",
    "\U0001f469\u200d\U0001f469\u200d\U0001f467", "\U0001f1e9\U0001f1ea", "e\u0301\u0323", "\u0301", "\u200b",
    "[CLS]", "[SEP]", "</s>", "<mask>", "\x00", "\t", "\n", "\u00a0", "\u3000", "\ufeff", "\ufffd", "\u2028",
)  # fmt: skip
SHORT_TEXTS = st.one_of(
    st.lists(st.sampled_from(WORDS), min_size=1, max_size=12).map(" ".join),
    st.lists(st.sampled_from(WORDS), min_size=1, max_size=8).map("".join),
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=30),
    st.sampled_from(["money bank grows", "He cashed a check at the bank.", "The bank by the river bank.", "!", " "]),
)
LONG_TEXTS = st.builds(
    lambda word, space, count: (word + space) * count,
    st.sampled_from(WORDS),
    st.sampled_from(["", " ", "  "]),
    st.integers(100, 600),
)
TEXTS = st.one_of(SHORT_TEXTS, SHORT_TEXTS, SHORT_TEXTS, LONG_TEXTS)


@dataclass(frozen=True)
class ModelFacts:
    """Fields of `/v1/model` that requests depend on."""

    name: str
    num_hidden_layers: int
    num_attention_heads: int
    hidden_size: int
    vocab_size: int
    attention_kinds: list[str]
    labels: list[str]
    token_labels: list[str]
    mask_token: str | None
    outputs: list[str]


def optional(value: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Omit a field with probability 3/4. Most requests then have few optional fields, and some have many."""
    return st.one_of(st.just(...), st.just(...), st.just(...), value)


def body(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Body]:
    """Draw JSON bodies, leaving out fields with the value `...`."""
    return st.fixed_dictionaries(fields).map(
        lambda drawn: {name: value for name, value in drawn.items() if value is not ...}
    )


def draw_layers(facts: ModelFacts, first: int) -> st.SearchStrategy[Any]:
    """Draw layers from `first` up, counted from either end, or "all". Some are invalid or repeated."""
    lowest, highest = first - facts.num_hidden_layers - 1, facts.num_hidden_layers
    count = highest + 1
    number = st.sampled_from([*range(first, highest + 1), *range(lowest, 0)])
    valid = st.lists(number, min_size=1, max_size=3, unique_by=lambda layer: layer % count)
    invalid = st.lists(st.integers(lowest - 1, highest + 1), min_size=1, max_size=3)
    return st.one_of(*[valid] * 7, st.just("all"), invalid)


@st.composite
def inputs(draw: st.DrawFn, facts: ModelFacts, *, spans: bool) -> Any:
    """Draw a text, texts, pairs or token ids."""
    form = draw(st.sampled_from(["text", "texts", "texts", "objects", "objects", "pairs", "ids"]))
    if form == "text" and not spans:
        return draw(TEXTS)
    if form == "texts" and not spans:
        return draw(st.lists(TEXTS, min_size=1, max_size=4))
    items = []
    for _ in range(draw(st.integers(1, 3))):
        if form == "ids":
            ids = st.lists(st.integers(0, facts.vocab_size - 1 + draw(st.sampled_from([0, 0, 0, 1]))), min_size=1,
                           max_size=20)  # fmt: skip
            items.append({"token_ids": draw(ids)})
            continue
        item: Body = {"text": draw(TEXTS)}
        if form == "pairs":
            item["pair"] = draw(TEXTS)
        if spans or draw(st.sampled_from([False] * 40 + [True])):
            item["spans"] = draw(draw_spans(item["text"]))
        items.append(item)
    return items


@st.composite
def draw_spans(draw: st.DrawFn, text: str) -> list[list[int]]:
    """Draw character ranges in a text, some of them out of range."""
    spans = []
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, max(0, len(text) - 1)))
        end = draw(st.integers(start + 1, len(text) + draw(st.sampled_from([0, 0, 0, 0, 1])) or start + 1))
        spans.append([start, max(end, start + 1)])
    return spans


@st.composite
def encode_bodies(draw: st.DrawFn, facts: ModelFacts) -> Body:
    names = st.sampled_from([*facts.outputs * 6, *get_args(Output)])
    outputs = draw(optional(st.lists(names, min_size=1, max_size=4)))
    has_spans = outputs is not ... and "spans" in outputs
    drawn = draw(
        body(
            inputs=inputs(facts, spans=has_spans),
            layers=optional(draw_layers(facts, 0)),
            layer_reduce=optional(st.sampled_from(get_args(LayerReduce))),
            pooling=optional(st.sampled_from(POOLINGS)),
            normalize=optional(st.booleans()),
            dimensions=optional(st.integers(1, 2 * facts.hidden_size)),
            truncation=st.sampled_from([..., "error", "right", "left", "auto"]),
            encoding_format=optional(st.sampled_from(["float", "base64"])),
            dtype=optional(st.sampled_from(get_args(DType))),
            prompt=optional(st.sampled_from(["query: ", "Represent this:", "", "\u3000", "word " * 300])),
            prompt_name=st.sampled_from([...] * 30 + ["query"]),
            role=optional(st.sampled_from(get_args(Side))),
        )
    )
    return drawn if outputs is ... else drawn | {"outputs": outputs}


@st.composite
def attend_bodies(draw: st.DrawFn, facts: ModelFacts) -> Body:
    unit = draw(optional(st.sampled_from(get_args(UnitKind))))
    drawn = draw(
        body(
            inputs=inputs(facts, spans=unit == get_args(UnitKind)[2]),
            kind=optional(st.sampled_from(KINDS)),
            layers=optional(draw_layers(facts, 1)),
            heads=optional(st.lists(st.integers(0, facts.num_attention_heads), min_size=1, max_size=3, unique=True)),
            head_reduce=optional(st.sampled_from(get_args(HeadReduce))),
            layer_reduce=optional(st.sampled_from(get_args(MapLayerReduce))),
            special_tokens=optional(st.sampled_from(get_args(SpecialTokens))),
            segments=optional(st.sampled_from(get_args(Segments))),
            top_p=optional(st.sampled_from([0.1, 0.5, 0.9, 1.0, 0.0])),
            top_k=optional(st.integers(0, 12)),
            decimals=optional(st.integers(0, 10)),
            truncation=st.sampled_from([..., "error", "right", "left", "auto"]),
            encoding_format=optional(st.sampled_from(["float", "base64"])),
            dtype=optional(st.sampled_from(get_args(MapDType))),
        )
    )
    return drawn if unit is ... else drawn | {"unit": unit}


@st.composite
def compare_bodies(draw: st.DrawFn, facts: ModelFacts) -> Body:
    occurrences = []
    for _ in range(draw(st.integers(2, 4))):
        text = draw(TEXTS)
        position = (
            {"span": draw(draw_spans(text))[0]}
            if draw(st.booleans())
            else {"word_index": draw(st.sampled_from([0, 0, 0, 1, 1, 2, 7]))}
        )
        occurrences.append({"text": text, **position})
    options = draw(body(layers=optional(draw_layers(facts, 0)), top_contributors=optional(st.integers(0, 10))))
    return {"occurrences": occurrences, **options}


@st.composite
def similarity_bodies(draw: st.DrawFn, facts: ModelFacts) -> Body:
    """Generate similarity requests. A few without `explain` have an option that requires it, which is an error."""
    texts = st.one_of(SHORT_TEXTS, SHORT_TEXTS, st.lists(TEXTS, min_size=1, max_size=3))
    prompts = st.sampled_from(["query: ", "", "\u3000"])
    has_heads = "sparse" in facts.outputs
    functions = [*get_args(SimilarityFunction) * 3]
    if not has_heads:
        functions = ["cosine", "dot", "euclidean", "manhattan"] * 5 + ["maxsim", "sparse"]
    drawn = draw(
        body(
            queries=texts,
            documents=texts,
            pairs=optional(st.sampled_from(get_args(Pairs))),
            similarity=optional(st.sampled_from(functions)),
            dimensions=optional(st.integers(0, facts.hidden_size + 1)),
            truncation=st.sampled_from([..., "error", "right", "left", "auto"]),
            query_prompt=optional(prompts),
            document_prompt=optional(prompts),
            document_prompt_name=st.sampled_from([...] * 30 + ["document"]),
        )
    )
    options = body(
        unit=st.sampled_from([..., *get_args(SimilarityUnit)]),
        top_k=optional(st.integers(0, 12)),
        effect=st.sampled_from([..., *get_args(Effect)]),
    )
    explain = draw(st.sampled_from([..., False, True, True, True]))
    if explain is True or draw(st.sampled_from([False] * 9 + [True])):
        drawn |= draw(options)
    return drawn if explain is ... else drawn | {"explain": explain}


def tokenize_bodies(facts: ModelFacts) -> st.SearchStrategy[Body]:
    return body(inputs=inputs(facts, spans=False))


def embeddings_bodies(facts: ModelFacts) -> st.SearchStrategy[Body]:
    """Draw OpenAI requests, which gRPC lacks."""
    ids = st.lists(st.integers(0, facts.vocab_size - 1), min_size=1, max_size=12)
    return body(
        input=st.one_of(TEXTS, st.lists(TEXTS, min_size=1, max_size=4), ids, st.lists(ids, min_size=1, max_size=3)),
        model=st.just(facts.name),
        encoding_format=optional(st.sampled_from(["float", "base64"])),
        dimensions=optional(st.integers(1, facts.hidden_size + 1)),
        user=optional(st.just("user-1")),
        input_type=optional(st.sampled_from(["query", "document", "passage"])),
        truncate=optional(st.booleans()),
    )
