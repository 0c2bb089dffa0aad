"""Tokenization of texts, pairs and token ids."""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain, pairwise
from operator import attrgetter
from typing import Literal, NamedTuple, Protocol, TypeVar

import numpy as np
import tokenizers
from tokenizers import models, pre_tokenizers

from model.artifact.manifest import MultiVectorHead, PairTemplateRecord

Offsets = tuple[int, int]
ValueT = TypeVar("ValueT")
ItemT = TypeVar("ItemT")
Text = str | tuple[str, str]
"""A text or a pair, in the library's format."""


class Encoding(Protocol):
    """The subset of `tokenizers.Encoding` that is used here. Each list contains one element per token."""

    @property
    def ids(self) -> list[int]: ...
    @property
    def type_ids(self) -> list[int]: ...
    @property
    def special_tokens_mask(self) -> list[int]: ...
    @property
    def sequence_ids(self) -> Sequence[int | None]: ...
    @property
    def offsets(self) -> list[Offsets]: ...


class Layout(NamedTuple):
    """The special tokens before, between and after the texts of an input, all type ids, and the order of the texts."""

    special_ids: list[list[int]]
    special_types: list[list[int]]
    types: list[int]
    order: list[int]

    @classmethod
    def of(cls, processed: Encoding) -> "Layout":
        """Return the layout of an encoding that has one token per text: `FIRST`, or `FIRST` and `SECOND`."""
        places = [index for index, flag in enumerate(processed.special_tokens_mask) if not flag]
        pieces = [slice(before + 1, after) for before, after in pairwise((-1, *places, len(processed.ids)))]
        ids, types = processed.ids, processed.type_ids
        special = [ids[piece] for piece in pieces], [types[piece] for piece in pieces]
        return cls(*special, [types[n] for n in places], [ids[n] for n in places])


class SeparateText:
    """The tokens of a text that was encoded without special tokens."""

    def __init__(self, encoding: Encoding) -> None:
        self.ids = encoding.ids
        self._encoding = encoding

    @cached_property
    def offsets(self) -> list[Offsets]:
        return self._encoding.offsets


class JoinedEncoding:
    """The encoding of one or two texts that were encoded separately.

    Each access builds a list, so pairs with the same first text share its tokens. The library would copy them, lose the
    sequence id of the first text, and trim offsets a second time.
    """

    def __init__(self, layout: Layout, *texts: SeparateText) -> None:
        self._layout = layout
        self._texts = [texts[number] for number in layout.order]

    @property
    def ids(self) -> list[int]:
        return _join(self._layout.special_ids, [text.ids for text in self._texts])

    @property
    def type_ids(self) -> list[int]:
        texts = zip(self._layout.types, self._texts, strict=True)
        return _join(self._layout.special_types, [[number] * len(text.ids) for number, text in texts])

    @property
    def special_tokens_mask(self) -> list[int]:
        return self._mark(1, [0, 0])

    @property
    def sequence_ids(self) -> list[int | None]:
        return self._mark(None, self._layout.order)

    @property
    def offsets(self) -> list[Offsets]:
        special: list[list[Offsets]] = [[(0, 0)] * len(ids) for ids in self._layout.special_ids]
        return _join(special, [text.offsets for text in self._texts])

    @property
    def segments(self) -> list[range]:
        segments, start = [range(0)] * len(self._texts), 0
        for special, text, number in zip(self._layout.special_ids, self._texts, self._layout.order, strict=False):
            start += len(special)
            segments[number] = range(start, start + len(text.ids))
            start += len(text.ids)
        return segments

    def _mark(self, special: ValueT, texts: Sequence[ValueT]) -> list[ValueT]:
        marks = [[mark] * len(text.ids) for mark, text in zip(texts, self._texts, strict=False)]
        return _join([[special] * len(ids) for ids in self._layout.special_ids], marks)


def _join(special: Sequence[list[ValueT]], texts: Sequence[list[ValueT]]) -> list[ValueT]:
    joined = [*special[0]]
    for text, following in zip(texts, special[1:], strict=True):
        joined += text
        joined += following
    return joined


@dataclass(frozen=True)
class TokenIdsEncoding:
    """The encoding of an input that was sent as token ids."""

    ids: list[int]
    type_ids: list[int]
    special_tokens_mask: list[int]
    sequence_ids: Sequence[int | None]
    offsets: list[Offsets]


class TemplateEncoding:
    """The encoding of a pair inserted into a template. The template's tokens count as special.

    A token that covers template text and part of the query or document belongs to the query or document, as do all
    tokens between the first and the last one of either.
    Arrays take a tenth of the memory of the library's encoding.
    """

    def __init__(self, text: Encoding, template: PairTemplateRecord, query: str, document: str) -> None:
        self._ids = np.array((*template.prefix_ids, *text.ids, *template.suffix_ids), np.int32)
        before = len(template.prefix_ids)
        starts, ends = np.array(text.offsets, np.int32).reshape(-1, 2).T
        self._offsets = np.zeros((len(self._ids), 2), np.int32)
        self.segments: list[range] = []
        first, free = len(template.head), 0
        for length in (len(query), len(document)):
            places = np.flatnonzero((starts < first + length) & (ends > first))
            start, end = (max(free, int(places[0])), int(places[-1]) + 1) if len(places) else (free, free)
            own = slice(before + start, before + end)
            self._offsets[own, 0] = np.maximum(starts[start:end] - first, 0)
            self._offsets[own, 1] = np.minimum(ends[start:end] - first, length)
            self.segments.append(range(own.start, own.stop))
            first, free = first + length + len(template.middle), end

    @property
    def ids(self) -> list[int]:
        ids: list[int] = self._ids.tolist()
        return ids

    @property
    def type_ids(self) -> list[int]:
        return [0] * len(self._ids)

    @property
    def special_tokens_mask(self) -> list[int]:
        return [int(number is None) for number in self.sequence_ids]

    @property
    def sequence_ids(self) -> list[int | None]:
        numbers: list[int | None] = [None] * len(self._ids)
        for number, segment in enumerate(self.segments):
            numbers[segment.start : segment.stop] = [number] * len(segment)
        return numbers

    @property
    def offsets(self) -> list[Offsets]:
        return [(start, end) for start, end in self._offsets.tolist()]


Side = Literal["right", "left"]

NO_SEGMENT = -1
SEGMENT_NUMBERS = {None: NO_SEGMENT, 0: 0, 1: 1}
RELEASED_TOKENS = 1024
"""If truncation drops more tokens than this, the encoding of the whole text is freed. That adds a fifth to the time."""
LISTS = ("token_type_ids", "special_tokens_mask", "segment", "offsets", "kept_characters", "has_content")
"""The attributes of a `TokenizedInput` that are built on first access."""


class TokenizerInput(NamedTuple):
    """One input: a text, a pair of texts, or token ids without special tokens.

    `prompt` is prepended to `text`; token ids have none.
    """

    text: str = ""
    pair: str | None = None
    token_ids: tuple[int, ...] | None = None
    prompt: str = ""


class TokenizedInput:
    """The T tokens of one input. Lists other than `input_ids` are built on first access.

    T includes the prompt's tokens, which are marked as special tokens and belong to no segment. Offsets refer to the
    text without the prompt. `truncated` is True if truncation dropped tokens.

    Attributes:
        unattended: The number of final tokens that no token attends to.
        skipped_ids: The ids of tokens that get no vector from a multi-vector head.
        least_tokens: The minimum number of tokens after words are removed.
        side: Whether the text is a query or a document, for a model that distinguishes them.
        has_types: False if all `token_type_ids` are known to be 0.
    """

    has_types = True
    unattended = 0
    skipped_ids: tuple[int, ...] = ()
    least_tokens = 0
    side: Literal["query", "document"] | None = None

    def __init__(self, source: TokenizerInput, encoding: Encoding, truncation: "_Truncation | None" = None) -> None:
        self.source = source
        self.truncated = truncation is not None
        self._encoding = encoding
        self._truncation = truncation
        self.input_ids: list[int] = encoding.ids if truncation is None else self._keep(encoding.ids)

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
        mask = [*map(bool, self._keep(self._encoding.special_tokens_mask))]
        if self.source.prompt:
            first, last = self.prompt_range
            mask[first:last] = [True] * (last - first)
        return mask

    @cached_property
    def segment(self) -> list[int]:
        """T segment numbers: 0 or 1 for the two texts of a pair, -1 for special tokens and the prompt."""
        numbers = [*map(SEGMENT_NUMBERS.__getitem__, self._keep(self._encoding.sequence_ids))]
        if self.source.prompt:
            first, last = self.prompt_range
            numbers[first:last] = [NO_SEGMENT] * (last - first)
        return numbers

    @cached_property
    def offsets(self) -> list[Offsets]:
        """T character ranges `[start, end)` in the token's text; (0, 0) for special tokens and the prompt."""
        offsets = self._text_offsets()
        for place in find_all(self.segment, NO_SEGMENT):
            offsets[place] = 0, 0
        covered = self._covered(offsets)
        if covered != [*map(str.strip, covered)]:
            texts = (self.source.text, self.source.pair or "")
            for place, (start, end) in enumerate(offsets):
                offsets[place] = _trim(texts[self.segment[place]], start, end)
        return offsets

    def _covered(self, offsets: Sequence[Offsets]) -> list[str]:
        """Return the part of the text that each token covers; "" for special tokens."""
        starts, ends = zip(*offsets, strict=True) if offsets else ((), ())
        slices = map(slice, starts, ends)
        if self.source.pair is None:
            return [*map(self.source.text.__getitem__, slices)]
        texts = {0: self.source.text, 1: self.source.pair, NO_SEGMENT: ""}
        return [*map(str.__getitem__, map(texts.__getitem__, self.segment), slices)]

    @property
    def texts(self) -> list[str]:
        """The part of the text that each token covers; "" for special tokens and the prompt."""
        return self._covered(self.offsets)

    @cached_property
    def kept_characters(self) -> tuple[Offsets, Offsets]:
        """The remaining character range `[start, end)` of each segment; the whole segment if it lost no tokens."""
        texts = (self.source.text, self.source.pair or "")
        if self._truncation is None:
            return (0, len(texts[0])), (0, len(texts[1]))
        side, dropped = self._truncation.side, self._truncation.dropped
        offsets = self._encoding.offsets  # read once: each access builds a list as long as the untruncated text
        prompts = (len(self.source.prompt), 0)

        def kept(segment: int) -> Offsets:
            text = texts[segment]
            if not dropped[segment]:
                return 0, len(text)
            start, end = offsets[dropped[segment][0 if side == "right" else -1]]
            start, end = _trim(text, max(0, start - prompts[segment]), max(0, end - prompts[segment]))
            return (0, start) if side == "right" else (end, len(text))

        return kept(0), kept(1)

    @cached_property
    def has_content(self) -> bool:
        """True if any token is neither a special token nor part of the prompt."""
        if self.source.prompt or self.truncated:
            return not all(self.special_tokens_mask)
        return not all(self._encoding.special_tokens_mask)

    def truncate(self, limit: int, side: Side, *, keep_pair: bool = False) -> "TokenizedInput":
        """Truncate to `limit` tokens, including special tokens, by dropping tokens at `side`.

        Pairs are truncated as in the tokenizers library's strategy "longest_first", with the prompt counted as part of
        the first text; with `keep_pair`, only the first text is. Special tokens and the prompt are never dropped.
        """
        if len(self) <= limit:
            return self
        texts = _segments(self._encoding)
        room = max(0, limit - (len(self) - len(texts[0]) - len(texts[1])))
        prompt = self.prompt_range[1] - self.prompt_range[0]
        first, second = _fit_longest_first(len(texts[0]), len(texts[1]), room)
        if keep_pair:
            second = min(len(texts[1]), room)
            first = room - second
        if first < prompt:
            first, second = prompt, min(len(texts[1]), max(0, room - prompt))
        own = texts[0][prompt:]
        first -= prompt
        if side == "right":
            dropped = (own[first:], texts[1][second:])
        else:
            dropped = (own[: len(own) - first], texts[1][: len(texts[1]) - second])
        truncated = TokenizedInput(self.source, self._encoding, _Truncation(side, dropped, len(self)))
        start, end = self.prompt_range
        before = len(dropped[1]) if dropped[1].start < start else 0
        truncated.prompt_range = start - before, end - before
        if len(dropped[0]) + len(dropped[1]) > RELEASED_TOKENS:
            truncated._release()
        return truncated

    def _release(self) -> None:
        """Build all lists now, so that the encoding of the whole text can be freed."""
        for name in LISTS:
            getattr(self, name)
        del self._encoding

    @property
    def first_text_tokens(self) -> int:
        """The number of tokens of the first text before truncation, without its prompt."""
        first, last = self.prompt_range
        return len(_segments(self._encoding)[0]) - (last - first)

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

    def _keep(self, values: Sequence[ValueT]) -> list[ValueT]:
        return list(values) if self._truncation is None else [values[index] for index in self._truncation.kept]


def find_all(values: list[int], value: int) -> Iterator[int]:
    """Yield the places of a value in a list."""
    place = -1
    for _ in range(values.count(value)):
        place = values.index(value, place + 1)
        yield place


def _segments(encoding: Encoding) -> Sequence[range]:
    """Return the token indices of both texts. The second range is empty if there is no pair."""
    if isinstance(encoding, JoinedEncoding | TemplateEncoding):
        segments = encoding.segments
    else:
        numbers = encoding.sequence_ids
        starts = [numbers.index(number) if number in numbers else 0 for number in (0, 1)]
        segments = [range(start, start + numbers.count(number)) for number, start in enumerate(starts)]
    return (*segments, range(0))[:2]


class _Truncation:
    """The token indices that truncation dropped, per segment, and the indices that it kept."""

    def __init__(self, side: Side, dropped: tuple[range, range], size: int) -> None:
        self.side = side
        self.dropped = dropped
        self.kept: list[int] = []
        start = 0
        for segment in sorted(dropped, key=lambda segment: segment.start):
            if segment:
                self.kept += range(start, segment.start)
                start = segment.stop
        self.kept += range(start, size)


def _fit_longest_first(first: int, second: int, room: int) -> tuple[int, int]:
    """Return how many tokens of each of two texts fit in `room`, as `LongestFirst` in the tokenizers library.

    The longer text is shortened first, at most to the length of the shorter one. If that is not enough, each gets half.
    An odd token goes to the longer text, or to the second text if both are equally long.
    """
    shorter, longer = sorted((first, second))
    longer = shorter if shorter > room else max(shorter, min(longer, room - shorter))
    if shorter + longer > room:
        shorter = room // 2
        longer = room - shorter
    return (longer, shorter) if first > second else (shorter, longer)


def _trim(text: str, start: int, end: int) -> Offsets:
    """Strip whitespace from both ends of a character range; leave it unchanged if it is all whitespace."""
    covered = text[start:end]
    trimmed = covered.strip()
    if len(trimmed) == len(covered) or not trimmed:
        return start, end
    start += len(covered) - len(covered.lstrip())
    return start, start + len(trimmed)


RARE_TEXTS = ("a" * 2000, "\U00012000 \U00013000 \U00010380 \ua66e")
"""A long word, and letters that few vocabularies contain. Tokenizers with an unknown token return that token for one of
these texts.
"""
MAX_TOKEN_ID = 2**24
"""Upper bound on token ids, because the library loops over all ids up to the largest."""


SHORT_CHARACTERS = 512
"""Texts of at most this many characters in total are tokenized without releasing the GIL: 0.2 ms of work."""
PART_CHARACTERS = 8192
"""A long batch is split into parts of about this many characters: 3 ms of work, much longer than a hand-off."""
GROUP_CHARACTERS = 2**20
"""The library's encodings exist for about this many characters of a request at a time."""
_text_of = attrgetter("text")
FIRST, SECOND = tokenizers.Tokenizer(models.WordLevel({"a": 0, "b": 1}, "a")).encode_batch(["a", "b"])


class Tokenizer:
    """A tokenizer loaded from tokenizer.json; thread-safe. `helpers`: threads that help with long batches."""

    helpers: Executor | None = None

    def __init__(
        self,
        definition: bytes,
        spelled_token: int | None = None,
        *,
        special_tokens_in_text: bool = False,
        prompts: Iterable[str] = (),
    ) -> None:
        """Load a tokenizer.

        Args:
            definition: The contents of tokenizer.json.
            spelled_token: The id of a special token to recognize in texts, such as the mask.
            special_tokens_in_text: Whether to recognize all special tokens in texts, as transformers does.
            prompts: The model's prompts, in which special tokens are recognized.
        """
        if spelled_token is not None:
            definition = _mark_as_text(definition, spelled_token)
        self._tokenizer = tokenizers.Tokenizer.from_str(definition.decode())
        check_template(self._tokenizer)
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        sample = self._tokenizer.encode_batch(["a"])[0]
        content = [index for index, flag in enumerate(sample.special_tokens_mask) if not flag]
        if not content:
            raise ValueError("tokenizer: produces no token for the text 'a'")
        self._prefix = sample.ids[: content[0]]
        self._suffix = sample.ids[content[-1] + 1 :]
        self._content_type = sample.type_ids[content[0]]
        self._special_tokens = len(self._prefix) + len(self._suffix)
        self._has_types = any(sample.type_ids)
        special = self._tokenizer.get_added_tokens_decoder().values()
        self._special_texts = tuple(token.content for token in special if token.special and token.content)
        self._special_tokens_in_text = special_tokens_in_text
        self._prompts: frozenset[str] = frozenset()
        self._with_special_tokens = self._tokenizer
        if not special_tokens_in_text:
            self._prompts = frozenset(prompt for prompt in prompts if self._spells_special_token(prompt))
            if self._prompts:
                self._with_special_tokens = tokenizers.Tokenizer.from_str(write_definition(self._tokenizer))
            # Only the post-processor may add special tokens; text that spells them is tokenized as text.
            self._tokenizer.encode_special_tokens = True
            self._split_spelled_special_tokens()

    @property
    def vocab_size(self) -> int:
        """One more than the largest token id."""
        return max(self._tokenizer.get_vocab(with_added_tokens=True).values()) + 1

    @property
    def unknown_token_id(self) -> int | None:
        """The id of the unknown token; None if the vocabulary does not define one."""
        model = self._tokenizer.model
        if isinstance(model, models.Unigram):  # has no attribute for it
            number: int | None = json.loads(model.__getstate__())["unk_id"]
            return number
        return None if not model.unk_token else self._tokenizer.token_to_id(model.unk_token)

    @property
    def token_type_ids(self) -> set[int]:
        """The type ids of texts and of pairs."""
        return {number for encoding in self._tokenizer.encode_batch(["a", ("a", "a")]) for number in encoding.type_ids}

    def find_input_tokens(self) -> dict[int, str]:
        """Return the tokens that can occur in texts, pairs and the model's prompts, by id.

        Some tokenizers define special tokens for other tasks, such as images, that never occur in texts and may be
        missing from the model's embedding table.
        """
        added = self._tokenizer.get_added_tokens_decoder()
        special = {number: token.content for number, token in added.items() if token.special}
        texts = [*RARE_TEXTS, *special.values()]
        encodings = [*self._tokenizer.encode_batch(["a", ("a", "a")])]
        encodings += self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        seen = {number for encoding in encodings for number in encoding.ids}
        unused = set() if self._special_tokens_in_text else special.keys() - seen
        unused -= {number for number in unused if any(special[number] in prompt for prompt in self._prompts)}
        tokens = {number: text for text, number in self._tokenizer.get_vocab().items() if number not in unused}
        return dict.fromkeys(seen, "") | tokens

    def _spells_special_token(self, text: str) -> bool:
        return any(content in text for content in self._special_texts)

    def _split_spelled_special_tokens(self) -> None:
        """Split the spelling of special tokens that are also vocabulary pieces, such as `</s>` in a unigram model."""
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
        """Return the untruncated tokens of each input; see `encode_each`."""
        return [*self.encode_each(sources, offsets=offsets)]

    def encode_each(self, sources: Sequence[TokenizerInput], *, offsets: bool = True) -> Iterator[TokenizedInput]:
        """Return an iterator over the untruncated tokens of each input.

        Truncate each input before the next one, because long texts take up to 150 bytes per token. `offsets=False` is
        20% faster; offsets are then unspecified unless there are prompts.
        """
        texts, pairs, token_ids, prompts = zip(*sources, strict=True) if sources else ((), (), (), ())
        if pairs.count(None) == token_ids.count(None) == prompts.count("") == len(sources):
            encode, lengths = self._encode_texts, [*map(len, texts)]
        else:
            encode = self._encode_group
            lengths = [len(source.prompt) + len(source.text) + len(source.pair or "") for source in sources]
        groups = _split(sources, lengths, GROUP_CHARACTERS)
        return chain.from_iterable(encode(group, offsets=offsets) for group in groups)

    def _encode_texts(self, sources: Sequence[TokenizerInput], *, offsets: bool) -> list[TokenizedInput]:
        """Encode inputs that are texts without a prompt, the usual case."""
        encodings = self._encode_batch([*map(_text_of, sources)], offsets=offsets)
        tokenized = [*map(TokenizedInput, sources, encodings)]
        for tokens in tokenized:
            tokens.has_types = self._has_types
            if len(tokens.input_ids) > self._special_tokens:
                tokens.has_content = True  # reading the library's list takes a microsecond
        return tokenized

    def _encode_group(self, sources: Sequence[TokenizerInput], *, offsets: bool) -> list[TokenizedInput]:
        plain: list[Text] = []
        for source in sources:
            if source.token_ids is None and source.prompt not in self._prompts:
                text = source.prompt + source.text
                plain.append(text if source.pair is None else (text, source.pair))
                offsets = offsets or source.prompt != ""  # offsets determine where the prompt ends
        encodings = iter(self._encode_batch(plain, offsets=offsets) if plain else ())
        tokenized = []
        for source in sources:
            encoding: Encoding
            if source.token_ids is not None:
                encoding = self._add_special_tokens(source.token_ids)
            elif source.prompt in self._prompts:
                texts = [self._encode_with_prompt(source.prompt, source.text)]
                if source.pair is not None:
                    texts += self._tokenizer.encode_batch([source.pair], add_special_tokens=False)
                layout = self._text_layout if source.pair is None else self._pair_layout
                encoding = JoinedEncoding(layout, *map(SeparateText, texts))
            else:
                encoding = next(encodings)
            tokenized.append(TokenizedInput(source, encoding))
        return tokenized

    def _encode_batch(
        self, texts: Sequence[Text], *, offsets: bool = True, add_special_tokens: bool = True
    ) -> list[tokenizers.Encoding]:
        """Encode texts and pairs, long batches in parts on this thread and any free helper threads.

        The library's `encode` keeps the GIL, and its batch methods release it, which takes longer than encoding a
        sentence if another thread acquires it meanwhile.
        """
        lengths = [len(text) if isinstance(text, str) else len(text[0]) + len(text[1]) for text in texts]
        if sum(lengths) <= SHORT_CHARACTERS:
            return [
                self._tokenizer.encode(text, add_special_tokens=add_special_tokens)
                if isinstance(text, str)
                else self._tokenizer.encode(*text, add_special_tokens=add_special_tokens)
                for text in texts
            ]
        library = self._tokenizer.encode_batch if offsets else self._tokenizer.encode_batch_fast
        encode: Callable[..., list[tokenizers.Encoding]] = partial(library, add_special_tokens=add_special_tokens)
        parts = [*_split(texts, lengths, PART_CHARACTERS)]
        if self.helpers is None or len(parts) == 1:
            return encode(texts)
        futures = [self.helpers.submit(encode, part) for part in parts]
        # Helpers take parts from the front, this thread from the back, so it never waits for a part that has not
        # started. This thread's parts are not always the last ones: a helper may start a part before its predecessor.
        own: dict[int, list[tokenizers.Encoding]] = {}
        try:
            for number in reversed(range(len(parts))):
                if futures[number].cancel():
                    own[number] = encode(parts[number])
            encoded = [own[number] if number in own else future.result() for number, future in enumerate(futures)]
        finally:
            for future in futures:
                future.cancel()
        return [encoding for part in encoded for encoding in part]

    def _encode_with_prompt(self, prompt: str, text: str) -> tokenizers.Encoding:
        """Encode a text after one of the model's prompts, in which special tokens are recognized."""
        if not self._spells_special_token(text):
            (encoding,) = self._with_special_tokens.encode_batch([prompt + text], add_special_tokens=False)
            return encoding
        end = max(prompt.rfind(content) + len(content) for content in self._special_texts if content in prompt)
        (first,) = self._with_special_tokens.encode_batch([prompt[:end]], add_special_tokens=False)
        (rest,) = self._tokenizer.encode_batch([prompt[end:] + text], add_special_tokens=False)
        return tokenizers.Encoding.merge([first, rest], growing_offsets=True)

    def encode_pairs(
        self, text: str, pairs: Sequence[str], *, prompt: str = "", offsets: bool = True
    ) -> Iterator[TokenizedInput]:
        """Yield the untruncated tokens of a text paired with each of several others. The text is tokenized once.

        Truncate each pair before the next one: a long text with many others may not fit in memory. `prompt` is
        prepended to the text. `offsets` is as in `encode_each`.
        """
        offsets = offsets or prompt != ""
        if prompt in self._prompts:
            encoded = self._encode_with_prompt(prompt, text)
        else:
            (encoded,) = self._encode_batch([prompt + text], offsets=offsets, add_special_tokens=False)
        first, prompt_tokens = SeparateText(encoded), None
        for group in _split(pairs, [len(pair) for pair in pairs], GROUP_CHARACTERS):
            others = self._encode_batch(group, offsets=offsets, add_special_tokens=False)
            for pair, other in zip(group, others, strict=True):
                encoding = JoinedEncoding(self._pair_layout, first, SeparateText(other))
                tokens = TokenizedInput(TokenizerInput(text, pair, prompt=prompt), encoding)
                if prompt:
                    start = encoding.segments[0].start
                    if prompt_tokens is None:
                        prompt_tokens = tokens.prompt_range[1] - start
                    tokens.prompt_range = start, start + prompt_tokens
                yield tokens

    def encode_template(
        self, template: PairTemplateRecord, query: str, documents: Sequence[str]
    ) -> Iterator[TokenizedInput]:
        """Yield the untruncated tokens of a query with each of several documents, in a template; see `encode_pairs`."""
        lengths = [len(query) + len(document) for document in documents]
        for group in _split(documents, lengths, GROUP_CHARACTERS):
            encodings = self._encode_batch([template.fill(query, text) for text in group], add_special_tokens=False)
            for document, encoding in zip(group, encodings, strict=True):
                yield TokenizedInput(
                    TokenizerInput(query, document), TemplateEncoding(encoding, template, query, document)
                )

    def token_texts(self, tokens: TokenizedInput) -> list[str]:
        """Return the text slice that each token covers, or the vocabulary entry for tokens without offsets."""
        if tokens.source.token_ids is not None:
            return self.vocabulary_texts(tokens.input_ids)
        texts = tokens.texts
        for place in find_all(tokens.segment, NO_SEGMENT):
            texts[place] = self._tokenizer.id_to_token(tokens.input_ids[place]) or ""
        return texts

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        """Return the text of token ids, which must be in the vocabulary."""
        text: str = self._tokenizer.decode(token_ids, skip_special_tokens=skip_special_tokens)
        return text

    def content_ids(self, token_ids: Sequence[int]) -> tuple[int, ...]:
        """Strip the tokenizer's special tokens from both ends of the ids if all are present."""
        before, after = len(self._prefix), len(self._suffix)
        end = len(token_ids) - after
        framed = end >= before and [*token_ids[:before]] == self._prefix and [*token_ids[end:]] == self._suffix
        return tuple(token_ids[before:end] if framed else token_ids)

    @property
    def leading_special_tokens(self) -> int:
        """The number of special tokens before a text."""
        return len(self._prefix)

    def find_token(self, text: str) -> list[int]:
        """Return the id of a text that is a vocabulary entry, else the ids of its tokens."""
        number = self._tokenizer.token_to_id(text)
        if number is not None:
            return [number]
        ids: list[int] = self._tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids
        return ids

    def vocabulary_texts(self, token_ids: Sequence[int]) -> list[str]:
        """Return the vocabulary entry of each id, or an empty text if there is none."""
        return [self._tokenizer.id_to_token(number) or "" for number in token_ids]

    @cached_property
    def _text_layout(self) -> Layout:
        return Layout.of(self._tokenizer.post_process(FIRST))

    @cached_property
    def _pair_layout(self) -> Layout:
        return Layout.of(self._tokenizer.post_process(FIRST, SECOND))

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


def _split(texts: Sequence[ItemT], lengths: Sequence[int], size: int) -> Iterator[Sequence[ItemT]]:
    """Yield consecutive texts with at least `size` characters in total, except for the last part."""
    if sum(lengths) < size and texts:
        yield texts
        return
    start = characters = 0
    for end, length in enumerate(lengths, 1):
        characters += length
        if characters >= size or end == len(texts):
            yield texts[start:end]
            start, characters = end, 0


def write_definition(tokenizer: tokenizers.Tokenizer) -> str:
    """Return the contents of tokenizer.json. Raises ValueError for ids that would make the library loop for hours."""
    largest = max(tokenizer.get_vocab().values(), default=0)
    if largest > MAX_TOKEN_ID:
        raise ValueError(f"tokenizer.json: token id too large ({largest}, limit {MAX_TOKEN_ID})")
    return str(tokenizer.to_str())


def check_template(tokenizer: tokenizers.Tokenizer) -> None:
    """Raise ValueError for a template that does not contain each text once.

    Also for templates that make the library panic: several, or with an undefined special token.
    """
    processor = json.loads(tokenizer.post_processor.__getstate__()) if tokenizer.post_processor else {}
    steps = (processor, *processor.get("processors", ()))
    templates = [step for step in steps if step.get("type") == "TemplateProcessing"]
    if len(templates) > 1:
        raise ValueError(f"post_processor: too many templates ({len(templates)}, limit 1)")
    for step in templates:
        pieces = [piece["SpecialToken"]["id"] for piece in step["single"] + step["pair"] if "SpecialToken" in piece]
        missing = next((piece for piece in pieces if piece not in step["special_tokens"]), None)
        if missing is not None:
            raise ValueError(f"post_processor: special token not defined ({missing!r:.80})")
        for name, key, texts in (("texts", "single", ["A"]), ("pairs", "pair", ["A", "B"])):
            if sorted(piece["Sequence"]["id"] for piece in step[key] if "Sequence" in piece) != texts:
                noun = "each text" if len(texts) > 1 else "the text"
                raise ValueError(f"post_processor: the template of {name} does not contain {noun} once")


def _mark_as_text(definition: bytes, token_id: int) -> bytes:
    """Return tokenizer.json with an added token changed to non-special."""
    values = json.loads(definition)
    for token in values["added_tokens"]:
        if token["id"] == token_id:
            token["special"] = False
    return json.dumps(values).encode()


def inserted_tokens(
    late: MultiVectorHead | None, template: PairTemplateRecord | None, mask_token_id: int | None
) -> Iterator[tuple[str, int]]:
    """Yield the ids that heads insert into inputs, each with its manifest field."""
    if late is not None:
        for side, record in (("query", late.query), ("document", late.document)):
            if record.marker is not None:
                yield f"multi_vector.{side}.marker", record.marker
        if late.expansion is not None:
            yield "multi_vector.expansion.token_id", late.expansion.token_id
    if template is not None:
        yield from (("classification.template.prefix_ids", number) for number in template.prefix_ids)
        yield from (("classification.template.suffix_ids", number) for number in template.suffix_ids)
    if mask_token_id is not None:
        yield "masked_lm.mask_token_id", mask_token_id


def find_missing_token(tokenizer: Tokenizer, rows: int, inserted: Iterator[tuple[str, int]]) -> str | None:
    """Return an error message if inputs can contain a token beyond the `rows` of the embedding table, else None."""
    for field, number in inserted:
        if not 0 <= number < rows:
            (text,) = tokenizer.vocabulary_texts([max(0, number)])
            return f"token {text!r} of {field} is not in the embedding table (id {number}, limit {rows - 1})"
    tokens = tokenizer.find_input_tokens()
    largest = max(tokens, default=0)
    if largest < rows:
        return None
    return f"token {tokens[largest]!r} is not in the embedding table (id {largest}, limit {rows - 1})"


def find_missing_type(tokenizer: Tokenizer, rows: int) -> str | None:
    """Return an error message if a token type is beyond the `rows` of the token type table, else None."""
    largest = max(tokenizer.token_type_ids)
    if rows <= 1 or largest < rows:  # a model with one type reads no types
        return None
    return f"token type is not in the table of types (id {largest}, limit {rows - 1})"
