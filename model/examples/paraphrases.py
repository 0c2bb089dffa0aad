"""Pairs of sentences with the same meaning and converse verbs: "A lent the drill to B", "B borrowed the drill from A".

The negatives swap the people. They reuse the words of one sentence with a different meaning, so a model that compares
words instead of roles ranks them first. People and objects in held-out sentences never occur in training.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from model.examples import write_lines

VERBS = {
    "lent": "borrowed", "sold": "bought", "gave": "received", "mailed": "got", "rented": "leased",
    "taught": "learned", "awarded": "won", "threw": "caught", "promised": "expected", "assigned": "took over",
}  # fmt: skip
"""Verbs of giving, each with its converse verb of receiving."""
PERSONS = (
    "Anna", "Ben", "Clara", "David", "Emma", "Felix", "Grace", "Henry", "Ida", "Jonas", "Karen", "Leo", "Maria", "Noah",
    "Olivia", "Peter", "Rosa", "Samuel", "Tina", "Victor", "Wendy", "Xavier", "Yara", "Zoe", "Alice", "Boris", "Carmen",
    "Diego", "Elena", "Frank", "Gina", "Hugo", "Irene", "Jack", "Kate", "Luis", "Mona", "Nick", "Paula", "Quentin",
)  # fmt: skip
OBJECT_NOUNS = (
    "drill", "boat", "ladder", "piano", "tent", "camera", "bicycle", "map", "ticket", "house", "car", "book", "coat",
    "telescope", "kayak", "violin", "sewing machine", "garden", "horse", "ring", "lamp", "laptop", "printer", "sofa",
    "stove", "trailer", "typewriter", "umbrella", "vase", "watch",
)  # fmt: skip
HELD_OUT_PERSONS, HELD_OUT_OBJECT_NOUNS = 12, 8
PAIRS, VALIDATION, QUERIES = 10_000, 300, 300
"""Examples per file."""


@dataclass(frozen=True)
class Paraphrase:
    """A sentence, a paraphrase, and two negatives with the people swapped."""

    query: str
    positive: str
    negatives: tuple[str, str]


def make_paraphrase(draw: random.Random, *, held_out: bool) -> Paraphrase:
    """Return a random pair that uses the training vocabulary, or the held-out one."""
    people = PERSONS[-HELD_OUT_PERSONS:] if held_out else PERSONS[:-HELD_OUT_PERSONS]
    things = OBJECT_NOUNS[-HELD_OUT_OBJECT_NOUNS:] if held_out else OBJECT_NOUNS[:-HELD_OUT_OBJECT_NOUNS]
    giver, receiver = draw.sample(people, 2)
    gives, receives = draw.choice(tuple(VERBS.items()))
    thing = draw.choice(things)

    def give(first: str, second: str) -> str:
        return f"{first} {gives} the {thing} to {second}."

    def receive(first: str, second: str) -> str:
        return f"{first} {receives} the {thing} from {second}."

    sentences = (give(giver, receiver), receive(receiver, giver))
    query, positive = sentences if draw.random() < 0.5 else sentences[::-1]
    return Paraphrase(query, positive, (give(receiver, giver), receive(giver, receiver)))


def write(directory: Path, seed: int = 0) -> None:
    """Write the files of the example.

    `pairs.jsonl` and `validation-pairs.jsonl`: for contrastive learning. `texts.jsonl` and `validation-texts.jsonl`:
    their sentences, for distillation. `retrieval.jsonl`: held-out queries, each with its positive and two negatives as
    documents. `rerank.json`: a request to `/v1/rerank` with documents like these, and the effect of each word.
    """
    draw = random.Random(seed)  # noqa: S311  # not for secrets
    for prefix, count, held_out in (("", PAIRS, False), ("validation-", VALIDATION, True)):
        pairs = [make_paraphrase(draw, held_out=held_out) for _ in range(count)]
        write_lines(directory / f"{prefix}pairs.jsonl", (_pair(pair) for pair in pairs))
        texts = ({"text": text} for pair in pairs for text in (pair.query, pair.positive))
        write_lines(directory / f"{prefix}texts.jsonl", texts)
    write_lines(directory / "retrieval.jsonl", _retrieval(draw))
    write_lines(directory / "rerank.json", [_rerank(make_paraphrase(draw, held_out=True))])


def _pair(pair: Paraphrase) -> dict[str, Any]:
    return {"query": pair.query, "positive": pair.positive, "negatives": list(pair.negatives)}


def _rerank(pair: Paraphrase) -> dict[str, Any]:
    documents = [*pair.negatives, pair.positive]
    return {
        "model": "converse-verbs-reranker", "query": pair.query, "documents": documents, "effect": "occlusion",
    }  # fmt: skip


def _retrieval(draw: random.Random) -> Iterator[dict[str, Any]]:
    """Yield distinct queries with their documents. No query is also a document."""
    queries: set[str] = set()
    documents: set[str] = set()
    while len(queries) < QUERIES:
        pair = make_paraphrase(draw, held_out=True)
        texts = {pair.query, pair.positive, *pair.negatives}
        if not texts & (queries | documents):
            queries.add(pair.query)
            documents |= texts - {pair.query}
            yield {"query": pair.query, "positive": pair.positive}
            yield from ({"document": text} for text in pair.negatives)
