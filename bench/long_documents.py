"""Compare chunk sizes, late chunking and BM25 by how well they find answers in Python's documentation.

The pages are `pydoc_data.topics` of the interpreter that runs the script. Measures of docs/long-documents.md.
"""

import re
import sys
from collections import Counter
from collections.abc import Sequence
from pydoc_data.topics import topics
from typing import Any, get_args

import numpy as np
from attendant_client.types import ChunkMode, ChunkOptions, EncodeRequest, EncodeResult, Input
from numpy.typing import NDArray

from model.artifact.tokenizer import Tokenizer, TokenizerInput
from service.commands.sources import run_engine
from service.config import load_settings
from service.engine.engine import Engine
from service.operations.chunks import encode_any
from service.operations.encode import pooled_vectors
from service.operations.inputs import Call
from service.operations.units import words_of

Floats = NDArray[Any]
PAGES = (
    "specialnames",
    "compound",
    "types",
    "typesseq",
    "typesmapping",
    "string-methods",
    "formatstrings",
    "debugger",
    "execmodel",
    "comparisons",
    "calls",
    "import",
    "assignment",
    "strings",
    "identifiers",
    "raise",
    "global",
    "nonlocal",
    "assert",
    "objects",
    "operator-summary",
    "slicings",
    "subscriptions",
    "async",
)
QUESTIONS = (
    ("What must a class define so that its instances can be keys of a dictionary?", "required property"),
    ("What happens to the hash of a class that overrides equality?", '"__hash__()" implicitly'),
    ("Which method is called when an attribute does not exist?", "default attribute"),
    ("How do I limit the attributes of instances to save memory?", "space saved"),
    ("How can I be told when my class is subclassed?", "containing class"),
    ("Which class is used to make a class?", "default, classes"),
    ("How do I make an object usable like a function?", "is “called”"),
    ("What does the method that leaves a with block return to swallow an exception?", "suppress the"),
    ("Why does adding my number to a built-in one work when mine is on the right side?", "operand does"),
    ("How do I pause a program at a line?", "calling stack"),
    ("How can I look at the local variables of the caller in the debugger?", "Move the"),
    ("Which debugger command continues until the current function ends?", "current function returns"),
    ("How do I run commands every time a breakpoint is hit?", "commands for"),
    ("How do I format a number with a thousands separator?", "a comma for"),
    ("How do I pad text to the right or the left in a format?", "be left-aligned"),
    ("How do I print a number in binary?", "Binary format."),
    ("How do I print a percentage?", "Multiplies the"),
    ("How do I write braces in a template?", "brace character"),
    ("How do I compare strings without regard to case, also in German?", "caseless matching"),
    ("How do I break a text into lines?", "string, breaking"),
    ("How do I replace characters by a table?", "given translation"),
    ("How do I put text between the items of a list of strings?", "concatenation of the"),
    ("How do I check that a string consists of digits only?", "are digits"),
    ("What is the order of the keys of a dictionary?", "Dictionaries preserve"),
    ("What happens if I add items to a dictionary while I loop over it?", "deleting entries"),
    ("Why are two lists in a repeated list the same object?", "items in the sequence"),
    ("Why should a tuple with one item have a comma?", "actually the"),
    ("How fast is it to build a long string by repeated addition?", "quadratic runtime"),
    ("Why does my function not see the variable of the class body?", "is limited"),
    ("How can I assign to a variable of the enclosing function?", "in the nearest enclosing scope"),
    ("How do I keep the original cause of an exception?", "exception chaining"),
    ("How do I match a value against several forms?", "for pattern"),
    ("When are default values of parameters computed?", "evaluated from"),
    ("Why is the same list used in every call of my function?", "“pre- computed”"),
    ("Is it allowed to chain comparisons?", "chained arbitrarily"),
    ("What is the difference between equality and identity?", "object’s identity"),
    ("How do I write a string without escapes?", "raw strings"),
    ("How do I put a character by its code into a string?", "with 16-bit"),
    ("Which letters may a name contain?", "codes mentioned"),
    ("What do names with one underscore at the start mean?", "Not imported"),
    ("Which binds more tightly, not or and?", "operator precedence"),
    ("What holds the code of a function after it is compiled?", "byte-compiled"),
    ("What does a generator return when it is called?", "method which uses"),
    ("How do I send arguments from a dictionary to a function?", "to a *mapping*"),
)
"""Questions, and words that a chunk with the answer contains."""
SIZES = (64, 128, 254)
K1, B = 1.2, 0.75
"""The usual constants of BM25 (Robertson and Zaragoza 2009)."""
RANK_CONSTANT = 60
"""The constant of reciprocal rank fusion (Cormack et al. 2009)."""


async def measure(engine: Engine) -> None:
    """Print a table per evaluation."""
    print(f"model: {engine.name}, {engine.info.precision}; pages of Python {sys.version.split()[0]}\n")
    await _answer_questions(engine)
    await _find_sentences(engine)


async def _answer_questions(engine: Engine) -> None:
    """Rank the chunks of long pages for questions."""
    pages = [topics[name] for name in PAGES]
    questions = [question for question, _ in QUESTIONS]
    queries = await _embed(engine, questions)
    print("| chunk | overlap | chunks | ranked by | first | first 5 | MRR |\n|---|---|---|---|---|---|---|")
    for size in SIZES:
        for overlap in (0, size // 4):
            scores = {}
            for mode in get_args(ChunkMode):
                texts, vectors = await _chunks(engine, pages, ChunkOptions("sentence", size, overlap, mode=mode))
                scores[mode] = queries @ vectors.T
            words = bm25(questions, texts, engine.tokenizer)
            scores |= {"BM25": words, "separate with BM25": fuse(words, scores["separate"])}
            for name, values in scores.items():
                ranks = np.array(
                    [_rank(row, texts, answer) for row, (_, answer) in zip(values, QUESTIONS, strict=True)]
                )
                means = ((ranks == 1).mean(), (ranks <= 5).mean(), (1 / ranks).mean())
                print(f"| {size} | {overlap} | {len(texts)} | {name} |", *(f"{mean:.2f} |" for mean in means))


async def _find_sentences(engine: Engine) -> None:
    """Rank single sentences of short pages, using titles as queries; the titled page's sentences are relevant."""
    pages = [topics[name].partition("\n")[::2] for name in sorted(topics)]
    methods = [part.partition("\n")[::2] for part in re.split(r"\n(?=str\.)", topics["string-methods"])[1:]]
    print("\n| texts | sentences | mode | mean average precision |\n|---|---|---|---|")
    for name, texts in (("pages", pages), ("methods of strings", methods)):
        bodies = [re.sub(r"^\s*[*=]+\n", "", body).strip() for _, body in texts]
        sizes = [len(tokens) for tokens in engine.tokenizer.encode(list(map(TokenizerInput, bodies)), offsets=False)]
        short = [place for place, size in enumerate(sizes) if 40 < size <= engine.manifest.max_input_tokens]
        queries = await _embed(engine, [texts[place][0].partition("(")[0] for place in short])
        for mode in get_args(ChunkMode):
            request = EncodeRequest(
                tuple(Input(bodies[place]) for place in short), chunks=ChunkOptions(merge=False, mode=mode)
            )
            results = (await encode_any(engine, request, Call())).results
            owners = np.concatenate([[index] * len(result.chunks or ()) for index, result in enumerate(results)])
            scores = queries @ _chunk_vectors(results).T
            mean = np.mean([_average_precision(row, owners == index) for index, row in enumerate(scores)])
            print(f"| {len(short)} {name} | {len(owners)} | {mode} | {mean:.2f} |")


async def _embed(engine: Engine, texts: Sequence[str]) -> Floats:
    return pooled_vectors(await encode_any(engine, EncodeRequest(tuple(map(Input, texts))), Call()))


async def _chunks(engine: Engine, pages: Sequence[str], options: ChunkOptions) -> tuple[list[str], Floats]:
    """Return the texts of all chunks, with single spaces, and their vectors."""
    response = await encode_any(engine, EncodeRequest(tuple(map(Input, pages)), chunks=options), Call())
    texts = [" ".join(chunk.text.split()) for result in response.results for chunk in result.chunks or ()]
    return texts, _chunk_vectors(response.results)


def _chunk_vectors(results: Sequence[EncodeResult]) -> Floats:
    return np.concatenate([result.chunk_vectors for result in results if result.chunk_vectors is not None])


def bm25(queries: Sequence[str], texts: Sequence[str], tokenizer: Tokenizer) -> Floats:
    """Return the BM25 scores of texts (Q, N) over the words that /v1/tokenize returns, in lower case."""

    def words(texts: Sequence[str]) -> list[list[str]]:
        tokens = tokenizer.encode(list(map(TokenizerInput, texts)))
        return [[word.text.lower() for word in words_of(item)] for item in tokens]

    counts = [Counter(found) for found in words(texts)]
    sizes = np.array([sum(count.values()) for count in counts])
    found = Counter(word for count in counts for word in count)
    scores = np.zeros((len(queries), len(texts)))
    for index, query in enumerate(words(queries)):
        for word in set(query):
            own = np.array([count[word] for count in counts])
            rarity = np.log1p((len(texts) - found[word] + 0.5) / (found[word] + 0.5))
            scores[index] += rarity * own * (K1 + 1) / (own + K1 * (1 - B + B * sizes / sizes.mean()))
    return scores


def fuse(*scores: Floats) -> Floats:
    """Return the sum of the reciprocal ranks of each text in several rankings."""
    ranks = [np.argsort(np.argsort(-values, axis=1, kind="stable"), axis=1) for values in scores]
    return sum((1 / (RANK_CONSTANT + 1 + rank) for rank in ranks), np.zeros_like(scores[0]))


def _rank(scores: Floats, texts: Sequence[str], answer: str) -> float:
    """Return the rank of the first text with the answer; infinity if a boundary cuts it in every text."""
    order = np.argsort(-scores, kind="stable")
    return next((rank for rank, place in enumerate(order, start=1) if answer in texts[place]), float("inf"))


def _average_precision(scores: Floats, relevant: NDArray[np.bool_]) -> float:
    found = relevant[np.argsort(-scores, kind="stable")]
    return float((np.cumsum(found) / np.arange(1, len(found) + 1))[found].mean())


if __name__ == "__main__":
    run_engine(load_settings(), measure)
