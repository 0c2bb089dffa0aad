"""Texts and reference implementations for the tokenizer tests."""

import random

import tokenizers

from model.artifact.tokenizer import Encoding, Side, TokenizedInput, Tokenizer, TokenizerInput

KINDS = ("default", "wordpiece", "swapped", "bytelevel", "untrimmed", "metaspace", "appended", "byte fallback")
PIECES = (
    "river", "Bank", "LÄUFT", "déjà", "vu", "money,", "don't", "x" * 150, "a-b", "42", "3.14",
    "...", "?!", "\U0001f469\u200d\U0001f469\u200d\U0001f467", "\U0001f3f3\ufe0f\u200d\U0001f308",
    "\U0001f1e9\U0001f1ea", "\u200b", "e\u0301\u0323", "\u0301", "שלום", "مرحبا", "\u202eabc\u202c",
    "\ufdfa", "漢字", "かな", "한국어", "ไทย", "नमस्ते", "ﬁ", "İ", "ß", "Ω", "\x00", "\t", "\n", "\r\n",
    "\u00a0", "\u3000", "  ", "\ufeff", "\ufffd", "[CLS]", "[SEP]", "</s>", "<mask>", "\U0001d54f",
    "\u1100\u1161\u11a8", "½", "①", "\x7f", "\u2028",
)  # fmt: skip
ORDINARY = (
    "The river bank flows past the old mill.",
    "Seven small boats wait; one (the red one) leaves at 5:30!",
    "Ein kleiner Hund läuft über die Brücke, déjà vu.",
    "unbelievably antidisestablishmentarian wordsmithing",
    "漢字 and emoji \U0001f469\u200d\U0001f467 side by side",
    "  blanks   on every side \t and a line\nbreak  ",
)


def encode_one(tokenizer: Tokenizer, text: str, pair: str | None = None, *, prompt: str = "") -> TokenizedInput:
    return tokenizer.encode([TokenizerInput(text, pair, prompt=prompt)])[0]


def edge_case_texts(count: int, seed: int) -> list[str]:
    """Return texts of one to nine pieces, with and without spaces in between."""
    rng = random.Random(seed)
    return [rng.choice(["", " ", "  "]).join(rng.choices(PIECES, k=rng.randint(1, 9))) for _ in range(count)]


def truncate_by_library(tokenizer: Tokenizer, text: str, pair: str | None, limit: int, side: Side) -> Encoding:
    """Return the encoding that the tokenizers library truncates itself; special tokens always remain."""
    library = tokenizers.Tokenizer.from_str(tokenizer._tokenizer.to_str())
    library.encode_special_tokens = True
    fewest = len(library.encode("", None if pair is None else "").ids)
    library.enable_truncation(max(limit, fewest), strategy="longest_first", direction=side)
    encoding: Encoding = library.encode(text, pair) if pair is not None else library.encode(text)
    return encoding
