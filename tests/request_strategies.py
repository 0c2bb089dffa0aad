"""Requests over the whole product of options, as JSON bodies, and the same requests as gRPC messages.

The limits come from the service (`/v1/model`), so the generator follows them. Most requests are valid; some carry one
option that does not go with another, because both protocols must then reject them alike.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, get_args

from hypothesis import strategies as st

from model.artifact import KINDS, POOLINGS
from service.engine.schema.encode import DType, LayerReduce, MapDType, Output
from service.engine.schema.explain import HeadReduce, MapLayerReduce, Segments, SpecialTokens, UnitKind
from service.pb import encoder_pb2 as pb

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
    """The facts of `/v1/model` that requests depend on."""

    layer_count: int
    head_count: int
    width: int
    vocabulary_size: int


def optional(value: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Absent three times of four, so that few options meet in most requests and many in some."""
    return st.one_of(st.just(...), st.just(...), st.just(...), value)


def body(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Body]:
    """Return JSON bodies; a field drawn as `...` is left out."""
    return st.fixed_dictionaries(fields).map(
        lambda drawn: {name: value for name, value in drawn.items() if value is not ...}
    )


def layers_of(facts: ModelFacts, first: int) -> st.SearchStrategy[Any]:
    """Layers from `first` on; sometimes one that does not exist, or one twice."""
    lowest, highest = first or -facts.layer_count - 1, facts.layer_count
    valid = st.lists(st.integers(first, highest), min_size=1, max_size=3, unique=True)
    return st.one_of(*[valid] * 7, st.lists(st.integers(lowest - 1, highest + 1), min_size=1, max_size=3))


@st.composite
def inputs(draw: st.DrawFn, facts: ModelFacts, *, spans: bool) -> Any:
    """A text, texts, pairs, token ids, all with spans or none."""
    form = draw(st.sampled_from(["text", "texts", "texts", "objects", "objects", "pairs", "ids"]))
    if form == "text" and not spans:
        return draw(TEXTS)
    if form == "texts" and not spans:
        return draw(st.lists(TEXTS, min_size=1, max_size=4))
    items = []
    for _ in range(draw(st.integers(1, 3))):
        if form == "ids":
            ids = st.lists(st.integers(0, facts.vocabulary_size - 1 + draw(st.sampled_from([0, 0, 0, 1]))), min_size=1,
                           max_size=20)  # fmt: skip
            items.append({"token_ids": draw(ids)})
            continue
        item: Body = {"text": draw(TEXTS)}
        if form == "pairs":
            item["pair"] = draw(TEXTS)
        if spans or draw(st.sampled_from([False] * 40 + [True])):
            item["spans"] = draw(spans_of(item["text"]))
        items.append(item)
    return items


@st.composite
def spans_of(draw: st.DrawFn, text: str) -> list[list[int]]:
    """Character ranges of a text; rarely one that lies outside."""
    spans = []
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, max(0, len(text) - 1)))
        end = draw(st.integers(start + 1, len(text) + draw(st.sampled_from([0, 0, 0, 0, 1])) or start + 1))
        spans.append([start, max(end, start + 1)])
    return spans


@st.composite
def encode_bodies(draw: st.DrawFn, facts: ModelFacts) -> Body:
    outputs = draw(optional(st.lists(st.sampled_from(get_args(Output)), min_size=1, max_size=4)))
    wants_spans = outputs is not ... and "spans" in outputs
    drawn = draw(
        body(
            inputs=inputs(facts, spans=wants_spans),
            layers=optional(layers_of(facts, 0)),
            layer_reduce=optional(st.sampled_from(get_args(LayerReduce))),
            pooling=optional(st.sampled_from(POOLINGS)),
            normalize=optional(st.booleans()),
            dimensions=optional(st.integers(1, 2 * facts.width)),
            truncation=st.sampled_from([..., "error", "right", "left", "right"]),
            encoding=optional(st.sampled_from(["float", "base64"])),
            dtype=optional(st.sampled_from(get_args(DType))),
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
            layers=optional(layers_of(facts, 1)),
            heads=optional(st.lists(st.integers(0, facts.head_count), min_size=1, max_size=3, unique=True)),
            head_reduce=optional(st.sampled_from(get_args(HeadReduce))),
            layer_reduce=optional(st.sampled_from(get_args(MapLayerReduce))),
            special=optional(st.sampled_from(get_args(SpecialTokens))),
            segments=optional(st.sampled_from(get_args(Segments))),
            top_p=optional(st.sampled_from([0.1, 0.5, 0.9, 1.0, 0.0])),
            top_k=optional(st.integers(0, 12)),
            decimals=optional(st.integers(0, 10)),
            truncation=st.sampled_from([..., "error", "right", "left", "right"]),
            encoding=optional(st.sampled_from(["float", "base64"])),
            dtype=optional(st.sampled_from(get_args(MapDType))),
        )
    )
    return drawn if unit is ... else drawn | {"unit": unit}


@st.composite
def compare_bodies(draw: st.DrawFn, facts: ModelFacts) -> Body:
    occurrences = []
    for _ in range(draw(st.integers(2, 4))):
        text = draw(TEXTS)
        place = (
            {"span": draw(spans_of(text))[0]}
            if draw(st.booleans())
            else {"word": draw(st.sampled_from([0, 0, 0, 1, 1, 2, 7]))}
        )
        occurrences.append({"text": text, **place})
    options = draw(body(layers=optional(layers_of(facts, 0)), draws_on=optional(st.integers(0, 10))))
    return {"occurrences": occurrences, **options}


def tokenize_bodies(facts: ModelFacts) -> st.SearchStrategy[Body]:
    return body(inputs=inputs(facts, spans=False))


def embeddings_bodies(facts: ModelFacts) -> st.SearchStrategy[Body]:
    """Requests of the OpenAI adapter, which has no gRPC twin."""
    ids = st.lists(st.integers(0, facts.vocabulary_size - 1), min_size=1, max_size=12)
    return body(
        input=st.one_of(TEXTS, st.lists(TEXTS, min_size=1, max_size=4), ids, st.lists(ids, min_size=1, max_size=3)),
        model=st.just("all-MiniLM-L6-v2"),
        encoding_format=optional(st.sampled_from(["float", "base64"])),
        dimensions=optional(st.integers(1, facts.width + 1)),
        user=optional(st.just("someone")),
    )


BODIES: dict[str, Callable[[ModelFacts], st.SearchStrategy[Body]]] = {
    "encode": encode_bodies,
    "attend": attend_bodies,
    "compare": compare_bodies,
    "tokenize": tokenize_bodies,
    "embeddings": embeddings_bodies,
}


def requests(facts: ModelFacts) -> st.SearchStrategy[tuple[str, Body]]:
    """Return pairs of an operation and its body."""
    return st.sampled_from([*BODIES, "encode", "attend"]).flatmap(
        lambda operation: st.tuples(st.just(operation), BODIES[operation](facts))
    )


def to_message(operation: str, request: Body) -> Any:
    """Return a body as the gRPC message; None if the message cannot say it."""
    if operation == "compare":
        return pb.CompareRequest(
            occurrences=[
                pb.Occurrence(text=each["text"], span=pb.Span(start=each["span"][0], end=each["span"][1]))
                if "span" in each
                else pb.Occurrence(text=each["text"], word=each["word"])
                for each in request["occurrences"]
            ],
            layers=request.get("layers", []),
            draws_on=request.get("draws_on"),
        )
    items = _inputs(request["inputs"])
    if operation == "tokenize":
        return pb.TokenizeRequest(inputs=items)
    names: dict[str, Any] = {
        name: f"{prefix}_{request[name].upper()}"
        for name, prefix in (("truncation", "TRUNCATION"), ("dtype", "DTYPE"))
        if name in request
    }
    if operation == "encode":
        return pb.EncodeRequest(
            inputs=items,
            outputs=[f"OUTPUT_{output.upper()}" for output in request.get("outputs", [])],
            layers=request.get("layers", []),
            **_enums(request, layer_reduce="LAYER_REDUCE", pooling="POOLING"),
            **{name: request[name] for name in ("normalize", "dimensions") if name in request},
            **names,
        )
    if "decimals" in request:
        return None
    return pb.AttendRequest(
        inputs=items,
        layers=request.get("layers", []),
        heads=request.get("heads", []),
        **_enums(request, kind="ATTENTION_KIND", head_reduce="HEAD_REDUCE", layer_reduce="MAP_LAYER_REDUCE",
                 unit="UNIT_KIND", special="SPECIAL_TOKENS", segments="SEGMENTS"),
        **{name: request[name] for name in ("top_p", "top_k") if name in request},
        **names,
    )  # fmt: skip


def _enums(request: Body, **prefixes: str) -> Any:
    return {name: f"{prefix}_{request[name].upper()}" for name, prefix in prefixes.items() if name in request}


def _inputs(given: Any) -> list[pb.Input]:
    items = [given] if isinstance(given, str) else given
    return [pb.Input(text=item) if isinstance(item, str) else _input(item) for item in items]


def _input(item: Body) -> pb.Input:
    spans = [pb.Span(start=start, end=end) for start, end in item.get("spans", [])]
    if "token_ids" in item:
        return pb.Input(token_ids=item["token_ids"])
    return pb.Input(text=item["text"], pair=item.get("pair"), spans=spans)
