"""The tokenizer of the server: long batches on several threads, decoding, and token ids with special tokens."""

import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import tokenizers

from model.artifact.tokenizer import Text, Tokenizer

# Read by the library at every call. Its thread pool has a thread per CPU of the machine in each worker, and takes 10%
# more CPU time per text for short batches, which wait for one of its threads even if they have only one text.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

PART_CHARACTERS = 8192
"""Texts of this many characters are tokenized by one thread: about 3 ms of work, much longer than a hand-off."""


class ServingTokenizer(Tokenizer):
    """A tokenizer with what only the server needs. Long batches use up to `threads` threads."""

    def __init__(
        self,
        definition: bytes,
        spelled_token: int | None = None,
        *,
        special_tokens_in_text: bool = False,
        prompts: Iterable[str] = (),
        threads: int = 1,
    ) -> None:
        super().__init__(definition, spelled_token, special_tokens_in_text=special_tokens_in_text, prompts=prompts)
        self._threads = threads

    def _encode_batch(
        self, texts: Sequence[Text], *, offsets: bool = True, add_special_tokens: bool = True
    ) -> list[tokenizers.Encoding]:
        """Return the encodings of texts and pairs, computed in parts by this thread and by others that are free."""

        def encode(part: Sequence[Text]) -> list[tokenizers.Encoding]:
            return Tokenizer._encode_batch(self, part, offsets=offsets, add_special_tokens=add_special_tokens)

        if self._threads == 1 or len(texts) == 1:
            return encode(texts)
        parts = [*_split(texts)]
        if len(parts) == 1:
            return encode(texts)
        others = helper_threads(self._threads)
        futures = [others.submit(encode, part) for part in parts]
        # The others begin at the first part and this thread at the last, so that it also ends if they are all busy.
        own = [encode(part) for future, part in zip(reversed(futures), reversed(parts), strict=True) if future.cancel()]
        done = [future.result() for future in futures if not future.cancelled()]
        return [encoding for part in (*done, *reversed(own)) for encoding in part]

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        """Return the text of token ids, all of them in the vocabulary."""
        text: str = self._tokenizer.decode(token_ids, skip_special_tokens=skip_special_tokens)
        return text

    def content_ids(self, token_ids: Sequence[int]) -> tuple[int, ...]:
        """Return the ids without the special tokens of the tokenizer, if they have all of them at both ends."""
        before, after = len(self._prefix), len(self._suffix)
        end = len(token_ids) - after
        framed = end >= before and [*token_ids[:before]] == self._prefix and [*token_ids[end:]] == self._suffix
        return tuple(token_ids[before:end] if framed else token_ids)


@cache
def helper_threads(threads: int) -> ThreadPoolExecutor:
    """Return the threads of this process that share long batches, besides the one that was called."""
    return ThreadPoolExecutor(threads - 1, thread_name_prefix="attendant-tokenize")


def _split(texts: Sequence[Text]) -> Iterator[Sequence[Text]]:
    """Yield consecutive texts with at least `PART_CHARACTERS` characters in total, except for the last part."""
    start = characters = 0
    for end, text in enumerate(texts, 1):
        characters += len(text) if isinstance(text, str) else len(text[0]) + len(text[1])
        if characters >= PART_CHARACTERS or end == len(texts):
            yield texts[start:end]
            start, characters = end, 0
