"""Real English sentences, found at run time in what is installed anyway: none of them lies in this repository.

They are the documentation of installed packages and of Python's own library, so another machine has others.
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
"""So many files of Python's library are read, in the order of their names."""


@cache
def find_sentences() -> tuple[str, ...]:
    """All that are there, each once, sorted; some ten thousand where this project's packages are installed."""
    texts = [*topics.topics.values()]
    texts += [distribution.read_text("METADATA") or "" for distribution in importlib.metadata.distributions()]
    library = Path(pydoc.__file__).parent
    files = sorted(library.rglob("*.py"))[:LIBRARY_FILES]
    texts += [path.read_text(encoding="utf-8", errors="ignore") for path in files]
    return tuple(sorted({sentence for text in texts for sentence in _sentences_of(text)}))


def sample_sentences(count: int) -> list[str]:
    """`count` of them, or all where there are fewer: those whose hashes come first, so that the choice is no one's."""
    return sorted(find_sentences(), key=lambda sentence: hashlib.sha256(sentence.encode()).digest())[:count]


def read_texts(path: Path) -> list[str]:
    """A file with one text a line; blank lines are none. Raises OSError, or ValueError where there is no text in it."""
    try:
        texts = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except UnicodeDecodeError:
        raise ValueError(f"{path}: not UTF-8.") from None
    if not texts:
        raise ValueError(f"{path}: no text in it.")
    return texts


def _sentences_of(text: str) -> list[str]:
    """Those of at least three words, most of them letters only: no code, tables or lists of options."""
    found = []
    for match in SENTENCE.finditer(re.sub(r"\s+", " ", text)):
        words = match.group().split()
        if len(words) >= 3 and sum(word.isalpha() for word in words) > 0.6 * len(words):
            found.append(match.group())
    return found
