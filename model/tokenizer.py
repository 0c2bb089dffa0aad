"""Tokenization, shared by training and serving. Independent of torch.

Three differences from a bare `tokenizers.Tokenizer`:
- Truncation and padding settings in tokenizer.json are ignored. Callers truncate explicitly and can see the result.
- Text never produces special tokens, even if it spells `[CLS]` or `</s>`.
- Offsets exclude whitespace around a token. Tokenizers of different families disagree on this.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, TypeVar

import tokenizers
from tokenizers import pre_tokenizers

from model.encodings import Encoding, Offsets, PairEncoding, PairTemplate, TemplateEncoding, TokenIdsEncoding

Side = Literal["right", "left"]
Value = TypeVar("Value")

NO_SEGMENT = -1


@dataclass(frozen=True)
class TokenizerInput:
    """One input: a text, a pair of texts, or token ids without special tokens. `prompt` is prepended to `text`."""

    text: str = ""
    pair: str | None = None
    token_ids: tuple[int, ...] | None = None
    prompt: str = ""

    def __post_init__(self) -> None:
        if self.prompt and self.token_ids is not None:
            raise ValueError("prompt: not supported with token_ids. Send text.")


class TokenizedInput:
    """The T tokens of one input. Lists other than `input_ids` are built on first access.

    T includes the tokens of the prompt. They are marked as special tokens, and belong to no segment. Offsets refer to
    the text without the prompt. `truncated` is True if truncation dropped tokens.

    Attributes:
        unattended: The number of tokens at the end to which no token attends.
        skipped_ids: The ids of tokens that have no vector in the output of a multi-vector head.
        least_tokens: The number of tokens that remain if words are removed.
    """

    unattended = 0
    skipped_ids: tuple[int, ...] = ()
    least_tokens = 0

    def __init__(self, source: TokenizerInput, encoding: Encoding, truncation: "_Truncation | None" = None) -> None:
        self.source = source
        self.truncated = truncation is not None
        self._encoding = encoding
        self._truncation = truncation
        self.input_ids = self._keep(encoding.ids)

    def __len__(self) -> int:
        return len(self.input_ids)

    @cached_property
    def token_type_ids(self) -> list[int]:
        """T type ids from the tokenizer; models with `type_vocab_size` 1 need zeros instead."""
        return self._keep(self._encoding.type_ids)

    @cached_property
    def prompt_range(self) -> tuple[int, int]:
        """The token indices `[first, last)` of the prompt; (0, 0) without a prompt.

        A token that covers the end of the prompt and the start of the text belongs to the text.
        """
        length = len(self.source.prompt)
        if not length:
            return 0, 0
        numbers = self._encoding.sequence_ids
        first = next((index for index, number in enumerate(numbers) if number == 0), 0)
        last = first
        for (_, end), number in zip(self._encoding.offsets[first:], numbers[first:], strict=True):
            if number != 0 or end > length:
                break
            last += 1
        return first, last

    @cached_property
    def special_tokens_mask(self) -> list[bool]:
        """T flags, true for tokens that the tokenizer added and for the prompt."""
        mask = [bool(flag) for flag in self._keep(self._encoding.special_tokens_mask)]
        if self.source.prompt:
            first, last = self.prompt_range
            mask[first:last] = [True] * (last - first)
        return mask

    @cached_property
    def segment(self) -> list[int]:
        """T segment numbers: 0 or 1 for the two texts of a pair, -1 for special tokens and the prompt."""
        numbers = [NO_SEGMENT if number is None else number for number in self._keep(self._encoding.sequence_ids)]
        if self.source.prompt:
            first, last = self.prompt_range
            numbers[first:last] = [NO_SEGMENT] * (last - first)
        return numbers

    @cached_property
    def offsets(self) -> list[Offsets]:
        """T character ranges `[start, end)` in the token's text; (0, 0) for special tokens and the prompt."""
        texts = (self.source.text, self.source.pair or "")
        return [
            (0, 0) if segment == NO_SEGMENT else _trim(texts[segment], start, end)
            for (start, end), segment in zip(self._text_offsets(), self.segment, strict=True)
        ]

    @cached_property
    def kept_characters(self) -> tuple[Offsets, Offsets]:
        """The character range `[start, end)` of each segment that remains; all of it if the segment lost no token."""
        texts = (self.source.text, self.source.pair or "")
        if self._truncation is None:
            return (0, len(texts[0])), (0, len(texts[1]))
        side, dropped = self._truncation.side, self._truncation.dropped
        offsets = self._encoding.offsets  # one list per access, as long as the untruncated text: read it once
        prompts = (len(self.source.prompt), 0)

        def kept(segment: int) -> Offsets:
            text = texts[segment]
            if not dropped[segment]:
                return 0, len(text)
            start, end = offsets[dropped[segment][0 if side == "right" else -1]]
            start, end = _trim(text, max(0, start - prompts[segment]), max(0, end - prompts[segment]))
            return (0, start) if side == "right" else (end, len(text))

        return kept(0), kept(1)

    @property
    def has_content(self) -> bool:
        """True if any token is neither a special token nor part of the prompt."""
        if self.source.prompt or self.truncated:
            return not all(self.special_tokens_mask)
        return not all(self._encoding.special_tokens_mask)

    def truncate(self, limit: int, side: Side) -> "TokenizedInput":
        """Return at most `limit` tokens, special tokens included, by dropping tokens at `side`.

        A pair loses tokens from its longer text first. Special tokens and the prompt are never dropped.
        """
        excess = len(self) - limit
        if excess <= 0:
            return self
        content: tuple[list[int], list[int]] = ([], [])
        for index, number in enumerate(self._encoding.sequence_ids):
            if number is not None:
                content[number].append(index)
        if self.source.prompt:
            del content[0][: self.prompt_range[1] - self.prompt_range[0]]
        first, second = len(content[0]), len(content[1])
        while excess and first + second:
            # Equivalent to dropping one token at a time, but takes all of the difference in length at once.
            stretch = max(1, min(excess, abs(first - second)))
            if first >= second:
                first -= min(stretch, first)
            else:
                second -= min(stretch, second)
            excess = len(self) - limit - (len(content[0]) - first) - (len(content[1]) - second)
        if side == "right":
            dropped = (content[0][first:], content[1][second:])
        else:
            dropped = (content[0][: len(content[0]) - first], content[1][: len(content[1]) - second])
        return TokenizedInput(self.source, self._encoding, _Truncation(side, dropped, len(self)))

    def _text_offsets(self) -> list[Offsets]:
        """Return the offsets in the text without the prompt, before whitespace is trimmed."""
        offsets = self._keep(self._encoding.offsets)
        length = len(self.source.prompt)
        if not length:
            return offsets
        return [
            (max(0, start - length), max(0, end - length)) if segment == 0 else (start, end)
            for (start, end), segment in zip(offsets, self.segment, strict=True)
        ]

    def _keep(self, values: Sequence[Value]) -> list[Value]:
        return list(values) if self._truncation is None else [values[index] for index in self._truncation.kept]


class Tokenizer:
    """A tokenizer loaded from tokenizer.json; thread-safe."""

    def __init__(self, definition: bytes, spelled_token: int | None = None) -> None:
        """Load a tokenizer; `spelled_token` is the id of a special token that texts may spell, such as the mask."""
        if spelled_token is not None:
            definition = _mark_as_text(definition, spelled_token)
        self._tokenizer = tokenizers.Tokenizer.from_str(definition.decode())
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        sample = self._tokenizer.encode_batch(["a"])[0]
        content = [index for index, flag in enumerate(sample.special_tokens_mask) if not flag]
        if not content:
            raise ValueError("tokenizer: produces no token for the text 'a'")
        self._prefix = sample.ids[: content[0]]
        self._suffix = sample.ids[content[-1] + 1 :]
        self._content_type = sample.type_ids[content[0]]
        # Only the post-processor may add special tokens; text that spells them is tokenized as text.
        self._tokenizer.encode_special_tokens = True
        self._split_spelled_special_tokens()

    @property
    def vocab_size(self) -> int:
        """One more than the largest token id."""
        return max(self._tokenizer.get_vocab(with_added_tokens=True).values()) + 1

    @property
    def text_vocab_size(self) -> int:
        """One more than the largest token id that the encoding of a text can contain.

        Some tokenizers have special tokens of other tasks, such as images, beyond the embedding table of the model.
        """
        added = self._tokenizer.get_added_tokens_decoder()
        unused = {number for number, token in added.items() if token.special} - {*self._prefix, *self._suffix}
        return max((number for number in self._tokenizer.get_vocab().values() if number not in unused), default=-1) + 1

    def _split_spelled_special_tokens(self) -> None:
        """Split the spelling of special tokens that are also pieces of the vocabulary, such as `</s>` in a unigram."""
        special = {
            number: token for number, token in self._tokenizer.get_added_tokens_decoder().items() if token.special
        }
        spelled = [
            f"{re.escape(token.content[0])}(?={re.escape(token.content[1:])})"
            for number, token in special.items()
            if len(token.content) > 1
            and number in self._tokenizer.encode_batch([token.content], add_special_tokens=False)[0].ids
        ]
        if spelled:
            split = pre_tokenizers.Split(tokenizers.Regex("|".join(spelled)), "merged_with_previous")
            existing = self._tokenizer.pre_tokenizer
            self._tokenizer.pre_tokenizer = split if existing is None else pre_tokenizers.Sequence([existing, split])

    def encode(self, sources: Sequence[TokenizerInput], *, offsets: bool = True) -> list[TokenizedInput]:
        """Return the untruncated tokens of each input.

        `offsets=False` is 20 % faster and makes all offsets (0, 0), unless an input has a prompt.
        """
        texts: list[str | tuple[str, str]] = []
        for source in sources:
            if source.token_ids is None:
                text = source.prompt + source.text
                texts.append(text if source.pair is None else (text, source.pair))
                offsets = offsets or source.prompt != ""  # the end of the prompt is known by its offsets
        # encode_batch even for one text: encode does not release the GIL.
        encode = self._tokenizer.encode_batch if offsets else self._tokenizer.encode_batch_fast
        encodings = iter(encode(texts) if texts else ())
        tokenized = []
        for source in sources:
            ids = source.token_ids
            tokenized.append(TokenizedInput(source, next(encodings) if ids is None else self._add_special_tokens(ids)))
        return tokenized

    def encode_pairs(self, text: str, pairs: Sequence[str], *, offsets: bool = True) -> list[TokenizedInput]:
        """Return the untruncated tokens of a text with each of several others; the text is tokenized once.

        `offsets` is as in `encode`.
        """
        encode = self._tokenizer.encode_batch if offsets else self._tokenizer.encode_batch_fast
        (first,) = encode([text], add_special_tokens=False)
        others = encode([*pairs], add_special_tokens=False)
        return [
            TokenizedInput(
                TokenizerInput(text, pair), PairEncoding(self._tokenizer.post_process(first, other), first, other)
            )
            for pair, other in zip(pairs, others, strict=True)
        ]

    def encode_template(self, template: PairTemplate, query: str, documents: Sequence[str]) -> list[TokenizedInput]:
        """Return the untruncated tokens of a query with each of several documents, in a template."""
        texts = [template.fill(query, document) for document in documents]
        encodings = self._tokenizer.encode_batch(texts, add_special_tokens=False)
        return [
            TokenizedInput(TokenizerInput(query, document), TemplateEncoding(encoding, template, query, document))
            for document, encoding in zip(documents, encodings, strict=True)
        ]

    def token_texts(self, tokens: TokenizedInput) -> list[str]:
        """Return the slice of the text that each token covers, or the vocabulary entry of tokens without offsets."""
        texts = (tokens.source.text, tokens.source.pair or "")
        from_ids = tokens.source.token_ids is not None
        return [
            self._tokenizer.id_to_token(number) or ""
            if from_ids or segment == NO_SEGMENT
            else texts[segment][start:end]
            for number, segment, (start, end) in zip(tokens.input_ids, tokens.segment, tokens.offsets, strict=True)
        ]

    @property
    def leading_special_tokens(self) -> int:
        """The number of special tokens before a text."""
        return len(self._prefix)

    def find_token(self, text: str) -> list[int]:
        """Return the id of a text that is an entry of the vocabulary, else the ids of its tokens."""
        number = self._tokenizer.token_to_id(text)
        if number is not None:
            return [number]
        ids: list[int] = self._tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids
        return ids

    def vocabulary_texts(self, token_ids: Sequence[int]) -> list[str]:
        """Return the vocabulary entry of each id; an empty text for an id without one."""
        return [self._tokenizer.id_to_token(number) or "" for number in token_ids]

    def _add_special_tokens(self, token_ids: Sequence[int]) -> Encoding:
        before, after = len(self._prefix), len(self._suffix)
        size = before + len(token_ids) + after
        return TokenIdsEncoding(
            ids=[*self._prefix, *token_ids, *self._suffix],
            type_ids=[self._content_type] * size,
            special_tokens_mask=[1] * before + [0] * len(token_ids) + [1] * after,
            sequence_ids=[None] * before + [0] * len(token_ids) + [None] * after,
            offsets=[(0, 0)] * size,
        )


def _mark_as_text(definition: bytes, token_id: int) -> bytes:
    """Return a tokenizer.json in which an added token is not special."""
    values = json.loads(definition)
    for token in values["added_tokens"]:
        if token["id"] == token_id:
            token["special"] = False
    return json.dumps(values).encode()


class _Truncation:
    """The token indices of an encoding that truncation dropped, per segment, and those that it kept."""

    def __init__(self, side: Side, dropped: tuple[list[int], list[int]], size: int) -> None:
        self.side = side
        self.dropped = dropped
        excluded = {*dropped[0], *dropped[1]}
        self.kept = [index for index in range(size) if index not in excluded]


def _trim(text: str, start: int, end: int) -> Offsets:
    """Return the character range without whitespace at its ends; unchanged if it is all whitespace."""
    covered = text[start:end]
    trimmed = covered.strip()
    if len(trimmed) == len(covered) or not trimmed:
        return start, end
    start += len(covered) - len(covered.lstrip())
    return start, start + len(trimmed)
