"""Detects tokenizer regular expressions that take exponential time, or more steps than their library allows.

A tokenizer call cannot be interrupted, so a single text could hang a server. The export tries texts that make such
patterns backtrack. It runs this file as a program in a process that it can kill.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

TIMEOUT_S = 20.0
"""Usual tokenizers take less than 2 s, mostly process startup."""
LENGTH = 1000
REPRESENTATIVES = "aA1 _.\n\té漢"
"""Characters that represent the usual character classes."""
MAX_LETTERS = 24


def find_slow_pattern(tokenizer: bytes) -> str | None:
    """Return the problem with the patterns in a tokenizer.json, or None."""
    if not patterns_of(json.loads(tokenizer)):
        return None
    try:
        done = subprocess.run(  # noqa: S603  # this file
            [sys.executable, "-P", __file__], input=tokenizer, capture_output=True, timeout=TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return f"a pattern takes more than {TIMEOUT_S:.0f} s for a text of {LENGTH} characters"
    return None if done.returncode == 0 else f"a pattern fails for a text of {LENGTH} characters"


def patterns_of(document: Any) -> list[str]:
    """Return the regular expressions in a tokenizer's JSON."""
    patterns, pending = (
        [],
        [document.get(part) for part in ("normalizer", "pre_tokenizer", "post_processor", "decoder")],
    )
    while pending:
        value = pending.pop()
        if isinstance(value, dict):
            if isinstance(value.get("Regex"), str):
                patterns.append(value["Regex"])
            pending.extend(value.values())
        elif isinstance(value, list):
            pending.extend(value)
    return patterns


def adversarial_texts(patterns: list[str]) -> Iterator[str]:
    """Yield texts that repeat one part and end differently, built from characters in the patterns and in usual classes.

    All of these characters are appended, because a search ends early if a required character is missing.
    """
    letters = list(dict.fromkeys(REPRESENTATIVES + "".join(patterns)))[:MAX_LETTERS]
    rest = "\0" + "".join(letters)
    for first in letters:
        for last in letters:
            yield first * LENGTH + last + rest
            yield (first + last) * (LENGTH // 2) + rest


def _main() -> None:
    from tokenizers import Tokenizer

    data = sys.stdin.buffer.read()
    tokenizer = Tokenizer.from_str(data.decode())
    for text in adversarial_texts(patterns_of(json.loads(data))):
        tokenizer.encode(text, add_special_tokens=False)


if __name__ == "__main__":
    _main()
