"""Inputs for late-interaction models: query and document markers, and query expansion."""

from collections.abc import Sequence
from functools import cached_property
from typing import TypeVar

from attendant_client.types import Offsets, Role

from model.artifact.manifest import Manifest, MultiVectorHead, SideRecord
from model.artifact.tokenizer import NO_SEGMENT, TokenizedInput
from service.engine.tasks import OccludedSequence

ValueT = TypeVar("ValueT")


class SidedInput(TokenizedInput):
    """A tokenized query or document with its special tokens (Khattab and Zaharia 2020, section 3.2).

    The marker is the token at index `place`. Expansion tokens are appended to a query. They have offsets (0, 0) and
    belong to no segment.
    """

    def __init__(self, tokens: TokenizedInput, head: MultiVectorHead, side: Role, place: int) -> None:
        self.source = tokens.source
        self.truncated = tokens.truncated
        self._tokens = tokens
        self._place = place
        self._marker = side_record(head, side).marker
        self._expansion = head.expansion if side == "query" else None
        self.least_tokens = 0 if self._expansion is None else self._expansion.length
        self._expanded = max(0, self.least_tokens - len(tokens) - int(self._marker is not None))
        self.unattended = self._count_unattended(self._expanded)
        self.skipped_ids = () if side == "query" else head.skipped_token_ids
        self.input_ids = self._insert(tokens.input_ids, self._marker or 0, self._expansion_id)

    @cached_property
    def token_type_ids(self) -> list[int]:
        return self._insert(self._tokens.token_type_ids, 0, 0)

    @cached_property
    def prompt_range(self) -> tuple[int, int]:
        first, last = self._tokens.prompt_range
        shift = int(self._marker is not None and last > 0)
        return first + shift, last + shift

    @cached_property
    def special_tokens_mask(self) -> list[bool]:
        return self._insert(self._tokens.special_tokens_mask, True, True)

    @cached_property
    def segment(self) -> list[int]:
        return self._insert(self._tokens.segment, NO_SEGMENT, NO_SEGMENT)

    @cached_property
    def offsets(self) -> list[Offsets]:
        return self._insert(self._tokens.offsets, (0, 0), (0, 0))

    @cached_property
    def kept_characters(self) -> tuple[Offsets, Offsets]:
        return self._tokens.kept_characters

    @property
    def has_content(self) -> bool:
        return self._tokens.has_content

    def select(self, places: Sequence[int]) -> OccludedSequence:
        """Return the tokens at these indices, which are ascending, followed by new expansion tokens for a query."""
        end = len(self) - self._expanded
        kept = [place for place in places if place < end]
        expanded = max(0, self.least_tokens - len(kept))
        return OccludedSequence(
            [self.input_ids[place] for place in kept] + [self._expansion_id] * expanded,
            [self.token_type_ids[place] for place in kept] + [0] * expanded,
            self._count_unattended(expanded),
            self.skipped_ids,
            self.side,
        )

    @property
    def _expansion_id(self) -> int:
        return 0 if self._expansion is None else self._expansion.token_id

    def _count_unattended(self, expanded: int) -> int:
        return 0 if self._expansion is None or self._expansion.attended else expanded

    def _insert(self, values: Sequence[ValueT], of_marker: ValueT, of_expansion: ValueT) -> list[ValueT]:
        marked = [*values]
        if self._marker is not None:
            marked.insert(self._place, of_marker)
        return marked + [of_expansion] * self._expanded


def side_record(head: MultiVectorHead, side: Role) -> SideRecord:
    """Return the manifest's settings for queries or for documents."""
    return head.query if side == "query" else head.document


def max_tokens(manifest: Manifest, side: Role | None, role: Role | None = None) -> int:
    """Return the maximum number of tokens of an input with a role, before `add_side` adds the marker."""
    longest = (
        manifest.max_input_tokens if role is None else manifest.role_max_tokens.get(role, manifest.max_input_tokens)
    )
    head = manifest.multi_vector
    if side is None or head is None:
        return longest
    record = side_record(head, side)
    limit = min(record.max_tokens or longest, longest)
    return limit - int(record.marker is not None)


def add_side(tokens: TokenizedInput, manifest: Manifest, side: Role | None, place: int) -> TokenizedInput:
    """Add the query or document marker at index `place` if the multi-vector head distinguishes sides."""
    head = manifest.multi_vector
    if side is not None and head is not None and head.has_sides:
        tokens = SidedInput(tokens, head, side, place)
    tokens.side = side
    return tokens
