"""Tokenizer patterns that backtrack forever are detected; usual ones pass."""

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

from model.source import tokenizer_patterns
from model.source.tokenizer_patterns import find_slow_pattern, patterns_of

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
QWEN = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def tokenizer(pattern: str, *, normalizes: bool) -> bytes:
    made: Any = Tokenizer(models.BPE(unk_token="[UNK]", vocab={"[UNK]": 0, "a": 1}, merges=[]))
    if normalizes:
        made.normalizer = normalizers.Replace(Regex(pattern), "b")
    else:
        made.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated")])
    return str(made.to_str()).encode()


@pytest.mark.parametrize("normalizes", [True, False])
@pytest.mark.parametrize("pattern", [r"(a+)+$", r"(\s*)*!", r"(?:x|x)*y", r"(_|\w)+\d"])
def test_patterns_that_backtrack_are_found(pattern: str, monkeypatch: pytest.MonkeyPatch, *, normalizes: bool) -> None:
    monkeypatch.setattr(tokenizer_patterns, "TIMEOUT_S", 4)
    problem = find_slow_pattern(tokenizer(pattern, normalizes=normalizes))
    assert problem is not None
    assert problem.startswith("a pattern ")


@pytest.mark.parametrize("pattern", [GPT2, QWEN, r" {2,}", r"\s+"])
def test_usual_patterns_pass(pattern: str) -> None:
    assert find_slow_pattern(tokenizer(pattern, normalizes=False)) is None


def test_tokenizer_without_patterns_starts_no_process(default_artifact: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("subprocess.run", None)
    data = (default_artifact / "tokenizer.json").read_bytes()
    assert patterns_of(json.loads(data)) == []
    assert find_slow_pattern(data) is None
