"""The check that every token id of an input is a row of the embedding table.

ONNX Runtime and OpenVINO disagree on an id beyond the table: an error, or the row of another token.
"""

from collections.abc import Iterator
from typing import Protocol

from model.head_records import ExpansionRecord, PairTemplateRecord, SideRecord
from model.tokenizer import Tokenizer


class LateInteraction(Protocol):
    """The tokens that a model with late interaction inserts."""

    @property
    def query(self) -> SideRecord: ...
    @property
    def document(self) -> SideRecord: ...
    @property
    def expansion(self) -> ExpansionRecord | None: ...


def inserted_tokens(
    late: LateInteraction | None, template: PairTemplateRecord | None, mask_token_id: int | None
) -> Iterator[tuple[str, int]]:
    """Yield the ids that heads insert into inputs, each with the field of the manifest that has it."""
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
    """Return the problem with a token of an input that is not one of the `rows` of the embedding table, if any is."""
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
    """Return the problem with a token type that is not one of the `rows` of the table of types, if any is."""
    largest = max(tokenizer.token_type_ids)
    if rows <= 1 or largest < rows:  # a model of one type reads none
        return None
    return f"token type is not in the table of types (id {largest}, limit {rows - 1})"
