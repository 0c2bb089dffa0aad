"""Requests that combine all fields, as JSON bodies and as gRPC messages.

The limits come from `/v1/model`. Most requests are valid. Some have conflicting fields, which both APIs must reject.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, get_args

from attendant_client.pb import encoder_pb2 as pb
from attendant_client.types import (
    Aggregation,
    Dtype,
    Effect,
    HeadReduce,
    LabelEffect,
    LayerOutput,
    LayerReduce,
    MapDtype,
    MapLayerReduce,
    Output,
    Pairs,
    Role,
    Segments,
    SimilarityFunction,
    SimilarityUnit,
    SpecialTokens,
    UnitKind,
)
from google.protobuf import json_format
from hypothesis import strategies as st

from model.artifact.manifest import KINDS, POOLINGS

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
    st.sampled_from(
        ["money bank grows", "He cashed a check at the bank.", "The bank by the river bank.", "all", "!", " "]
    ),
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
    max_input_tokens: int
    vocab_size: int
    attention_kinds: list[str]
    labels: list[str]
    token_labels: list[str]
    mask_token: str | None
    outputs: list[str]
    layer_outputs: list[str]


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
            dtype=optional(st.sampled_from(get_args(Dtype))),
            prompt=optional(st.sampled_from(["query: ", "Represent this:", "", "\u3000", "word " * 300])),
            prompt_name=st.sampled_from([...] * 30 + ["query"]),
            role=optional(st.sampled_from(get_args(Role))),
        )
    )
    return drawn if outputs is ... else drawn | {"outputs": outputs}


@st.composite
def chunk_bodies(draw: st.DrawFn, facts: ModelFacts) -> Body:
    """Draw a body of encode with chunks; a few other fields conflict with them."""
    by_span = draw(st.sampled_from([False] * 4 + [True]))
    chunks = draw(
        body(
            by=st.just("span") if by_span else st.sampled_from([..., "sentence", "paragraph", "token"]),
            max_tokens=optional(st.integers(0, 40)) if by_span else st.sampled_from([..., 1, 3, 8, 20, 500]),
            overlap_tokens=optional(st.integers(0, 12)),
            merge=optional(st.booleans()),
            mode=st.sampled_from([..., "separate", "late", "late"]),
            language=optional(st.sampled_from(["de", "zh", "none"])),
        )
    )
    if by_span:
        texts: Any = draw(st.lists(st.tuples(TEXTS, st.lists(st.integers(0, 60), min_size=2, max_size=6, unique=True))))
        items: Any = [{"text": text, "spans": [[start, end] for start, end in pairwise(sorted(cuts))]}
                      for text, cuts in texts]  # fmt: skip
    else:
        items = draw(st.one_of(TEXTS, st.lists(TEXTS, min_size=1, max_size=3), inputs(facts, spans=False)))
    options = draw(encode_bodies(facts))
    kept = draw(st.lists(st.sampled_from(sorted(options)), max_size=3))
    return {name: options[name] for name in kept if name != "inputs"} | {"inputs": items, "chunks": chunks}


@st.composite
def attend_bodies(draw: st.DrawFn, facts: ModelFacts) -> Body:
    if draw(st.sampled_from([False] * 3 + [True])):
        return draw(layer_output_bodies(facts))
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
            dtype=optional(st.sampled_from(get_args(MapDtype))),
        )
    )
    return drawn if unit is ... else drawn | {"unit": unit}


@st.composite
def layer_output_bodies(draw: st.DrawFn, facts: ModelFacts) -> Body:
    """Generate attend requests with `outputs`. A few have an option of maps, which is an error."""
    options = draw(
        body(
            inputs=inputs(facts, spans=False),
            layers=optional(draw_layers(facts, 1)),
            heads=optional(st.lists(st.integers(0, facts.num_attention_heads), min_size=1, max_size=3, unique=True)),
            rows=optional(st.lists(st.sampled_from([0, 0, 1, 1, 2, 500, -1]), min_size=1, max_size=3)),
            kind=st.sampled_from([...] * 20 + ["norm"]),
            unit=st.sampled_from([...] * 20 + ["word"]),
            top_k=st.sampled_from([...] * 20 + [3]),
            decimals=optional(st.integers(0, 10)),
            truncation=st.sampled_from([..., "error", "right", "left", "auto"]),
            encoding_format=optional(st.sampled_from(["float", "base64"])),
            dtype=optional(st.sampled_from(get_args(MapDtype))),
        )
    )
    names = [*facts.layer_outputs * 20, *get_args(LayerOutput)]
    outputs = st.lists(st.sampled_from(names), min_size=1, max_size=4)
    return {**options, "outputs": draw(outputs)}


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


OPTIONS: dict[str, st.SearchStrategy[Any]] = {
    "raw_scores": optional(st.booleans()),
    "truncation": st.sampled_from([..., "error", "right", "left", "auto"]),
    "effect": st.sampled_from([..., *get_args(LabelEffect)]),
    "unit": optional(st.sampled_from(get_args(SimilarityUnit))),
}


CHOICES = ("river", "money", "a very long label about banks", "", "déjà vu", "river")


@st.composite
def classify_bodies(draw: st.DrawFn, facts: ModelFacts) -> Body:
    """Draw classify requests; for an entailment model, most contain labels to choose from."""
    own = body(inputs=inputs(facts, spans=False), top_k=optional(st.integers(0, 4)), **OPTIONS)
    if not any(label.lower().startswith("entail") for label in facts.labels) or draw(st.integers(0, 3)) == 0:
        return draw(own)
    chosen = body(
        labels=st.lists(st.sampled_from(CHOICES), min_size=1, max_size=4),
        template=optional(st.sampled_from(["About {}.", "{}", "none", "{} and {}"])),
        multi_label=optional(st.booleans()),
    )
    texts = st.lists(SHORT_TEXTS, min_size=1, max_size=3)
    return draw(own) | draw(chosen) | ({"inputs": draw(texts)} if draw(st.integers(0, 5)) else {})


def token_classify_bodies(facts: ModelFacts) -> st.SearchStrategy[Body]:
    return body(
        inputs=inputs(facts, spans=False),
        aggregation=st.sampled_from([..., *get_args(Aggregation)]),
        truncation=st.sampled_from([..., "error", "right", "left", "auto"]),
    )


def rerank_bodies(facts: ModelFacts) -> st.SearchStrategy[Body]:
    """Draw rerank requests. A few have `explain_top` or `unit` without `effect`, which is an error."""
    del facts
    documents = st.lists(st.one_of(TEXTS, TEXTS, TEXTS.map(lambda text: {"text": text})), min_size=1, max_size=4)
    return body(
        query=SHORT_TEXTS,
        documents=documents,
        top_n=optional(st.integers(0, 5)),
        return_documents=optional(st.booleans()),
        explain_top=optional(st.integers(0, 4)),
        **OPTIONS,
    )


def texts_of(request: Body) -> list[str]:
    return [item if isinstance(item, str) else item["text"] for item in request["documents"]]


TARGETS = ("bank", "river", "the", "a", "Bank", "money", "", "river bank", "\U0001f469\u200d")


def fill_mask_bodies(facts: ModelFacts) -> st.SearchStrategy[Body]:
    """Draw fill-mask requests. Some inputs lack a mask token, and some targets are not one token."""
    return body(
        inputs=inputs(facts, spans=False).flatmap(lambda items: _with_masks(items, facts.mask_token or "[MASK]")),
        position=optional(st.integers(-1, 20)),
        layers=optional(draw_layers(facts, 0)),
        top_k=optional(st.integers(0, 101)),
        targets=optional(st.lists(st.sampled_from(TARGETS), max_size=3)),
        truncation=st.sampled_from([..., "error", "right", "left", "auto"]),
    )


@st.composite
def _with_masks(draw: st.DrawFn, items: Any, mask: str) -> Any:
    if isinstance(items, str):
        return draw(_masked(items, mask))
    masked: list[Any] = []
    for item in items:
        text = item if isinstance(item, str) else item.get("text")
        changed = None if text is None else draw(_masked(text, mask))
        masked.append(changed if isinstance(item, str) else item | ({} if changed is None else {"text": changed}))
    return masked


def _masked(text: str, mask: str) -> st.SearchStrategy[str]:
    """Put a mask at the start, instead of a space, at the end, or nowhere."""
    return st.sampled_from([f"{mask} {text}", text.replace(" ", f" {mask} ", 1), f"{text}{mask}", text])


BODIES: dict[str, Callable[[ModelFacts], st.SearchStrategy[Body]]] = {
    "encode": lambda facts: st.one_of(*[encode_bodies(facts)] * 3, chunk_bodies(facts)),
    "attend": attend_bodies,
    "compare": compare_bodies,
    "similarity": similarity_bodies,
    "rerank": rerank_bodies,
    "classify": classify_bodies,
    "token_classify": token_classify_bodies,
    "fill_mask": fill_mask_bodies,
    "tokenize": tokenize_bodies,
    "embeddings": embeddings_bodies,
}


MESSAGES: dict[str, Callable[[], Any]] = {
    "encode": pb.EncodeRequest,
    "attend": pb.AttendRequest,
    "compare": pb.CompareRequest,
    "similarity": pb.SimilarityRequest,
    "rerank": pb.RerankRequest,
    "classify": pb.ClassifyRequest,
    "token_classify": pb.TokenClassifyRequest,
    "fill_mask": pb.FillMaskRequest,
    "tokenize": pb.TokenizeRequest,
}


def requests(facts: ModelFacts) -> st.SearchStrategy[tuple[str, Body]]:
    """Draw pairs of an operation and its body; most often of the operations with the most fields."""
    frequent = ["rerank", "classify"] * 4 if facts.labels else ["encode", "attend"]
    frequent += ["token_classify"] * 8 if facts.token_labels else []
    frequent += ["fill_mask"] * 4 if facts.mask_token else []
    return st.sampled_from([*BODIES, *frequent]).flatmap(
        lambda operation: st.tuples(st.just(operation), BODIES[operation](facts))
    )


def to_message(operation: str, request: Body) -> Any:
    """Convert a body to a gRPC message, or return None if the proto lacks one of its fields or combinations."""
    message = MESSAGES[operation]()
    fields = message.DESCRIPTOR.fields_by_name
    values = {name: value for name, value in request.items() if name != "encoding_format"}  # the format of JSON
    if values.get("layers") == "all":
        del values["layers"]
        values |= {"all_layers": True} if "all_layers" in fields else {}
    if values.keys() - fields.keys() or values.get("targets") == []:
        return None
    choices = [fields[name].containing_oneof.name for name in values if fields[name].containing_oneof is not None]
    if len(choices) != len(set(choices)):
        return None
    for name in ("inputs", "queries", "documents"):
        if isinstance(values.get(name), str):
            values[name] = [values[name]]
    return json_format.ParseDict({name: _to_proto(fields[name], value) for name, value in values.items()}, message)


def _to_proto(field: Any, value: Any) -> Any:
    """Return the value of a field as protobuf's JSON represents it."""
    kind = field.message_type.name if field.message_type is not None else ""
    if kind == "TokenIds":
        return {"ids": value}
    if kind == "Span" and value and isinstance(value[0], int):
        return {"start": value[0], "end": value[1]}
    if isinstance(value, list):
        return [_to_proto(field, item) for item in value]
    if field.enum_type is not None:
        return field.enum_type.values[0].name.removesuffix("UNSPECIFIED") + value.upper()
    if not kind:
        return value["text"] if isinstance(value, dict) else value
    value = {"text": value} if isinstance(value, str) else value
    return {name: _to_proto(field.message_type.fields_by_name[name], item) for name, item in value.items()}
