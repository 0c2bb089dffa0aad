"""Requests of decode."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DecodeRequest:
    """A request for the texts of token ids.

    Attributes:
        token_ids: One sequence per text.
        skip_special_tokens: Whether to leave out the special tokens.
        deadline: See `EncodeRequest`.
    """

    token_ids: tuple[tuple[int, ...], ...]
    skip_special_tokens: bool = True
    deadline: float | None = None
