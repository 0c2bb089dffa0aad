"""Real English sentences for accuracy measurements, extracted at run time from installed packages.

The sources are package metadata, and documentation and source code of Python's standard library, so the sentences
depend on the machine. The repository contains none of them.
"""

import hashlib
import importlib.metadata
import pydoc
import re
from functools import cache
from pathlib import Path
from pydoc_data import topics

SENTENCE = re.compile(r"[A-Z][A-Za-z0-9 ,;:'\"()-]{15,400}[.!?](?=\s|$)")
LIBRARY_FILES = 1500
"""Maximum number of files of the standard library to read, in the order of their names."""


@cache
def find_sentences() -> tuple[str, ...]:
    """Return all sentences, distinct and sorted; about ten thousand if the packages of this project are installed."""
    texts = [*topics.topics.values()]
    texts += [distribution.read_text("METADATA") or "" for distribution in importlib.metadata.distributions()]
    library = Path(pydoc.__file__).parent
    files = sorted(library.rglob("*.py"))[:LIBRARY_FILES]
    texts += [path.read_text(encoding="utf-8", errors="ignore") for path in files]
    return tuple(sorted({sentence for text in texts for sentence in _extract_sentences(text)}))


def sample_sentences(count: int) -> list[str]:
    """Return at most `count` sentences: those with the smallest SHA-256 digests, an arbitrary but stable choice."""
    return sorted(find_sentences(), key=lambda sentence: hashlib.sha256(sentence.encode()).digest())[:count]


def read_texts(path: Path) -> list[str]:
    """Return the texts of a file with one text per line, without blank lines.

    Raises:
        OSError: the file cannot be read.
        ValueError: the file is not UTF-8 or contains no text.
    """
    try:
        texts = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except UnicodeDecodeError:
        raise ValueError(f"{path}: not UTF-8. Convert it.") from None
    if not texts:
        raise ValueError(f"{path}: no text. Add one text per line.")
    return texts


def _extract_sentences(text: str) -> list[str]:
    """Return the sentences of at least three words, over 60% of them alphabetic (excludes code, tables, options)."""
    sentences = []
    for match in SENTENCE.finditer(re.sub(r"\s+", " ", text)):
        words = match.group().split()
        if len(words) >= 3 and sum(word.isalpha() for word in words) > 0.6 * len(words):
            sentences.append(match.group())
    return sentences
