"""The server's tokenizer: multithreaded batches, decoding, and token ids with special tokens."""

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import tokenizers

from model.artifact.tokenizer import Text, Tokenizer
from service.process import lower_thread_priority

# The library reads this variable on every call. Its pool creates one thread per CPU in each worker, and makes short
# batches 10% slower: even a single text is handed to a pool thread.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

PART_CHARACTERS = 8192
"""A long batch is split into parts of about this many characters: 3 ms of work, much longer than a hand-off."""


class ServingTokenizer(Tokenizer):
    """The tokenizer of the server. Long batches use up to `threads` threads."""

    threads = 1

    def _encode_batch(
        self, texts: Sequence[Text], *, offsets: bool = True, add_special_tokens: bool = True
    ) -> list[tokenizers.Encoding]:
        """Encode texts and pairs in parts, on this thread and any free helper threads."""

        def encode(part: Sequence[Text]) -> list[tokenizers.Encoding]:
            return Tokenizer._encode_batch(self, part, offsets=offsets, add_special_tokens=add_special_tokens)

        if self.threads == 1 or len(texts) == 1:
            return encode(texts)
        parts = [*_split(texts)]
        if len(parts) == 1:
            return encode(texts)
        futures = [helper_threads(self.threads).submit(encode, part) for part in parts]
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


@cache
def helper_threads(threads: int) -> ThreadPoolExecutor:
    """Return the process-wide threads that help with long batches, at the priority of inference threads."""
    return ThreadPoolExecutor(threads - 1, thread_name_prefix="attendant-tokenize", initializer=lower_thread_priority)


def _split(texts: Sequence[Text]) -> Iterator[Sequence[Text]]:
    """Yield consecutive texts with at least `PART_CHARACTERS` characters in total, except for the last part."""
    start = characters = 0
    for end, text in enumerate(texts, 1):
        characters += len(text) if isinstance(text, str) else len(text[0]) + len(text[1])
        if characters >= PART_CHARACTERS or end == len(texts):
            yield texts[start:end]
            start, characters = end, 0
