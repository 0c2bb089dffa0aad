"""The tokenizer of the server: also decodes, and removes special tokens that a client sends with token ids."""

from collections.abc import Sequence

from model.artifact.tokenizer import Tokenizer


class ServingTokenizer(Tokenizer):
    """A tokenizer with the operations that only API adapters need."""

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
