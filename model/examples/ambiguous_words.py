"""A toy language with ambiguous words, whose sense is determined by one known word of the sentence.

Each ambiguous noun belongs to two topics. The deciding noun in the sentence belongs to one of them, and appears near or
far, before or after. All other nouns are neutral or belong to unrelated topics.

The texts for language modeling are easier: they add nouns of the deciding topic, and adjectives that match their noun's
topic. They teach a language model which words belong together.
"""

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from model.examples import write_lines

TOPICS = {
    "water": ("river", "lake", "shore", "ferry", "canoe", "tide", "harbor", "stream", "wave", "dam"),
    "money": ("loan", "coin", "teller", "deposit", "cashier", "mortgage", "savings", "invoice", "budget", "debt"),
    "sport": ("referee", "pitcher", "stadium", "coach", "league", "goal", "trophy", "umpire", "player", "score"),
    "animal": ("cave", "nest", "feather", "zoo", "burrow", "herd", "predator", "prey", "wing", "forest"),
    "machine": ("engine", "gear", "lever", "factory", "motor", "piston", "bolt", "workshop", "pump", "mechanic"),
    "season": ("blossom", "summer", "snow", "harvest", "frost", "seedling", "orchard", "autumn", "meadow", "thaw"),
}
AMBIGUOUS = {
    "bank": ("water", "money"), "bat": ("animal", "sport"), "spring": ("season", "machine"),
    "crane": ("animal", "machine"), "match": ("sport", "season"), "seal": ("water", "money"),
    "pitch": ("sport", "machine"), "bill": ("animal", "money"),
}  # fmt: skip
"""The two topics of each ambiguous noun."""
TOPIC_ADJECTIVES = {
    "water": ("wet", "muddy", "deep", "salty"),
    "money": ("costly", "financial", "unpaid", "solvent"),
    "sport": ("athletic", "winning", "televised", "professional"),
    "animal": ("wild", "furry", "hungry", "nocturnal"),
    "machine": ("mechanical", "greasy", "hydraulic", "electric"),
    "season": ("seasonal", "frosty", "blooming", "sunny"),
}
NOUNS = ("teacher", "neighbor", "letter", "window", "story", "table", "child", "visitor", "picture", "corner", "friend",
         "stranger", "song", "lamp", "box", "paper", "voice", "street", "garden", "chair")  # fmt: skip
ADJECTIVES = ("old", "new", "small", "large", "quiet", "famous", "strange", "simple", "distant", "familiar")
VERBS = ("watched", "passed", "remembered", "found", "ignored", "described", "touched", "reached", "left", "showed")
PREPOSITIONS = ("near", "behind", "beside", "after", "before", "without")
CONJUNCTIONS = ("while", "because", "and", "although", "until")
MAX_CLAUSES = 3
NOUNS_PER_CLAUSE = 3
SAME_TOPIC_SHARE, UNRELATED_SHARE = 0.5, 0.3
"""Fraction of other nouns drawn from the deciding topic (in easy sentences), and fraction of the rest drawn from
unrelated topics.
"""
TOPIC_ADJECTIVE_SHARE, ADJECTIVE_SHARE = 0.7, 0.3

SENTENCES, PAIRS, TEST_PAIRS, TEST_SENTENCES, VALIDATION = 20_000, 10_000, 1_000, 500, 500
"""Examples per file."""


@dataclass(frozen=True)
class Sentence:
    """A sentence with one ambiguous word; indices count words. `topic` is its sense."""

    words: tuple[str, ...]
    word_index: int
    deciding_index: int
    topic: str

    @property
    def text(self) -> str:
        return " ".join(self.words) + "."

    @property
    def word(self) -> str:
        return self.words[self.word_index]

    @property
    def span(self) -> tuple[int, int]:
        """The characters [start, end) of the ambiguous word."""
        start = sum(len(word) + 1 for word in self.words[: self.word_index])
        return start, start + len(self.word)


def make_sentence(draw: random.Random, word: str, topic: str, *, easy: bool = False) -> Sentence:
    """Return a random sentence with an ambiguous word in one of its senses; `easy` adds words from the topic."""
    count = NOUNS_PER_CLAUSE * draw.randint(1, MAX_CLAUSES)
    place, deciding = draw.sample(range(count), 2)
    topics = [_topic_of_noun(draw, word, topic, easy) for _ in range(count)]
    topics[place] = topics[deciding] = topic
    words: list[str] = []
    positions = []
    for number, own in enumerate(topics):
        words += _words_before(draw, number, own if easy else None)
        positions.append(len(words))
        words.append(word if number == place else draw.choice(NOUNS if own is None else TOPICS[own]))
    return Sentence(tuple(words), positions[place], positions[deciding], topic)


def _topic_of_noun(draw: random.Random, word: str, topic: str, easy: bool) -> str | None:
    """Return the topic of a noun that is neither ambiguous nor deciding; None if it is neutral."""
    if easy and draw.random() < SAME_TOPIC_SHARE:
        return topic
    unrelated = [name for name in TOPICS if name not in AMBIGUOUS[word]]
    return draw.choice(unrelated) if draw.random() < UNRELATED_SHARE else None


def _words_before(draw: random.Random, number: int, topic: str | None) -> list[str]:
    """Return the words before a noun: conjunction, verb or preposition, article, and sometimes an adjective."""
    clause, role = divmod(number, NOUNS_PER_CLAUSE)
    words = []
    if role == 0 and clause:
        words.append(draw.choice(CONJUNCTIONS))
    elif role:
        words.append(draw.choice((VERBS, PREPOSITIONS)[role - 1]))
    words.append(draw.choice(("the", "a")))
    if topic is not None and draw.random() < TOPIC_ADJECTIVE_SHARE:
        words.append(draw.choice(TOPIC_ADJECTIVES[topic]))
    elif draw.random() < ADJECTIVE_SHARE:
        words.append(draw.choice(ADJECTIVES))
    return words


def write(directory: Path, seed: int = 0) -> None:
    """Write the files of the example.

    `train.txt` and `validation.txt`: easy sentences. `pairs.jsonl` and `validation-pairs.jsonl`: two sentences with a
    word in the same sense, and one with the other sense. `words.jsonl` and `attribution.jsonl`: for `attendant
    evaluate`.
    """
    draw = random.Random(seed)  # noqa: S311  # not for secrets
    for name, count in (("train.txt", SENTENCES), ("validation.txt", VALIDATION)):
        texts = (make_sentence(draw, *_sense(draw), easy=True).text for _ in range(count))
        (directory / name).write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    write_lines(directory / "pairs.jsonl", (_pair(draw) for _ in range(PAIRS)))
    write_lines(directory / "validation-pairs.jsonl", (_pair(draw) for _ in range(VALIDATION)))
    write_lines(directory / "words.jsonl", (_test_pair(draw, number % 2 == 0) for number in range(TEST_PAIRS)))
    write_lines(directory / "attribution.jsonl", (_test_sentence(draw) for _ in range(TEST_SENTENCES)))


def _sense(draw: random.Random) -> tuple[str, str]:
    word = draw.choice(tuple(AMBIGUOUS))
    return word, draw.choice(AMBIGUOUS[word])


def _other_topic(word: str, topic: str) -> str:
    first, second = AMBIGUOUS[word]
    return second if topic == first else first


def _pair(draw: random.Random) -> dict[str, Any]:
    word, topic = _sense(draw)
    query, positive = make_sentence(draw, word, topic), make_sentence(draw, word, topic)
    negative = make_sentence(draw, word, _other_topic(word, topic))
    spans = [sentence.span for sentence in (query, positive, negative)]
    return {"query": query.text, "positive": positive.text, "negatives": [negative.text], "spans": spans}


def _test_pair(draw: random.Random, same: bool) -> dict[str, Any]:
    word, topic = _sense(draw)
    first = make_sentence(draw, word, topic)
    second = make_sentence(draw, word, topic if same else _other_topic(word, topic))
    return {
        "text1": first.text, "word_index1": first.word_index,
        "text2": second.text, "word_index2": second.word_index, "same": same,
    }  # fmt: skip


def _test_sentence(draw: random.Random) -> dict[str, Any]:
    word, topic = _sense(draw)
    sentence, reference = make_sentence(draw, word, topic), make_sentence(draw, word, topic)
    return {
        "text": sentence.text, "word_index": sentence.word_index, "deciding_index": sentence.deciding_index,
        "reference": reference.text, "sense": f"{word}: {topic}",
    }  # fmt: skip
