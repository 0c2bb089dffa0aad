"""Packed batches of examples for training: fixed shapes, filled like the batches of the server."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from model.packing import BatchShape, pack_batch
from model.tokenized_input import TokenizedInput, TokenizerInput
from model.tokenizer import Tokenizer
from model.train.config import TrainError
from model.train.corpus import Example, ExampleStream, Span, State

POOL_BATCHES = 2
"""Batches of tokens to choose examples from. More of them fill rows better and take longer to place."""
TOKENIZED_EXAMPLES = 256
MAX_EMPTY_READS = 100


class Item(NamedTuple):
    """A tokenized example: the token ids of each of its texts, the texts, and the token range of each span.

    The two texts of a labeled pair are one sequence, with `token_type_ids`.
    """

    sequences: list[list[int]]
    texts: tuple[str, ...]
    ranges: tuple[tuple[int, int], ...] = ()
    label: float | None = None
    token_type_ids: tuple[list[int], ...] = ()

    @property
    def tokens(self) -> int:
        return sum(map(len, self.sequences))


@dataclass(frozen=True)
class TrainingBatch:
    """A packed batch: the four inputs of the encoder, int64 tensors (R, T), and the targets of an objective.

    `count` is the number of predictions, whose losses are summed. `tokens` excludes padding.
    """

    inputs: dict[str, Tensor]
    targets: dict[str, Tensor]
    texts: tuple[str, ...]
    count: int
    tokens: int

    def to(self, device: torch.device) -> "TrainingBatch":
        """Return the batch on a device."""
        inputs, targets = (
            {name: tensor.to(device, non_blocking=True) for name, tensor in tensors.items()}
            for tensors in (self.inputs, self.targets)
        )
        return replace(self, inputs=inputs, targets=targets)


class Collate(Protocol):
    """Makes a batch of items, whose sequences start at `starts` in the R * T tokens."""

    def __call__(
        self, items: Sequence[Item], shape: BatchShape, starts: Sequence[int], draw: random.Random
    ) -> TrainingBatch: ...


class PackedBatches:
    """An endless stream of packed batches of `shape`, which continues exactly from a saved state.

    `prompts` are prepended to the first text of an example, and to the others.
    """

    def __init__(
        self, examples: ExampleStream, tokenizer: Tokenizer, shape: BatchShape, collate: Collate,
        seed: int, prompts: tuple[str, str] = ("", ""),
    ) -> None:  # fmt: skip
        self._examples = examples
        self._tokenizer = tokenizer
        self._shape = shape
        self._collate = collate
        self._prompts = prompts
        self._random = random.Random(seed)  # noqa: S311  # not for secrets
        self._pool: list[Item] = []

    def __iter__(self) -> Iterator[TrainingBatch]:
        return self

    def __next__(self) -> TrainingBatch:
        empty_reads = 0
        while sum(item.tokens for item in self._pool) < POOL_BATCHES * self._shape.tokens:
            items = self._tokenize([next(self._examples) for _ in range(TOKENIZED_EXAMPLES)])
            empty_reads = 0 if items else empty_reads + 1
            if empty_reads > MAX_EMPTY_READS:
                raise TrainError(f"{self._examples}: no text has a token. Check the texts and the tokenizer.")
            self._pool += items
        chosen, starts, self._pool = fill(self._pool, self._shape)
        if not chosen:
            raise TrainError(
                f"run.rows_per_batch: too small for an example of {len(self._pool[0].sequences)} texts "
                f"({self._shape.rows} rows of {self._shape.length} tokens). Raise it."
            )
        return self._collate(chosen, self._shape, starts, self._random)

    def _tokenize(self, examples: Sequence[Example]) -> list[Item]:
        """Return the items of the examples, without those that have a text or span without tokens."""
        sources = [self._sources(example) for example in examples]
        has_spans = any(example.spans for example in examples)
        tokenized = iter(self._tokenizer.encode([source for own in sources for source in own], offsets=has_spans))
        items = []
        for example, own in zip(examples, sources, strict=True):
            inputs = [next(tokenized).truncate(self._shape.length, "right") for _ in own]
            ranges = [token_range(tokens, span) for tokens, span in zip(inputs, example.spans, strict=False)]
            if all(tokens.has_content for tokens in inputs) and all(first < last for first, last in ranges):
                types = () if example.label is None else tuple(tokens.token_type_ids for tokens in inputs)
                ids = [tokens.input_ids for tokens in inputs]
                items.append(Item(ids, example.texts, tuple(ranges), example.label, types))
        return items

    def _sources(self, example: Example) -> list[TokenizerInput]:
        """Return the inputs of the tokenizer: one per text, or a pair if the example has a label."""
        if example.label is not None:
            query, document = example.texts
            return [TokenizerInput(query, document)]
        first, others = self._prompts
        return [TokenizerInput(text, prompt=others if index else first) for index, text in enumerate(example.texts)]

    def state_dict(self) -> State:
        """Return the position, as values that torch.save stores."""
        return {
            "examples": self._examples.state_dict(),
            "pool": [tuple(item) for item in self._pool],
            "random": self._random.getstate(),
        }

    def load_state_dict(self, state: State) -> None:
        """Continue from a position."""
        self._examples.load_state_dict(state["examples"])
        self._pool = [Item(*item) for item in state["pool"]]
        self._random.setstate(state["random"])


def token_range(tokens: TokenizedInput, span: Span) -> tuple[int, int]:
    """Return the tokens [first, last) that overlap characters [start, end); (0, 0) if truncation dropped them."""
    start, end = span
    inside = [index for index, (first, last) in enumerate(tokens.offsets) if first < end and last > start]
    return (inside[0], inside[-1] + 1) if inside else (0, 0)


def fill(pool: Sequence[Item], shape: BatchShape) -> tuple[list[Item], list[int], list[Item]]:
    """Choose items for a batch: first fit, in the order of the pool. All sequences of an item are in one batch.

    Returns:
        The chosen items, the start of each of their sequences in the R * T tokens, and the rest of the pool.
    """
    used = [0] * shape.rows
    chosen: list[Item] = []
    starts: list[int] = []
    rest: list[Item] = []
    for item in pool:
        before, placed = list(used), []
        for ids in item.sequences:
            row = next((row for row, filled in enumerate(used) if filled + len(ids) <= shape.length), None)
            if row is None:
                break
            placed.append(row * shape.length + used[row])
            used[row] += len(ids)
        if len(placed) < len(item.sequences):
            used = before
            rest.append(item)
        else:
            chosen.append(item)
            starts += placed
    return chosen, starts, rest


def pack(
    sequences: Sequence[list[int]],
    shape: BatchShape,
    starts: Sequence[int],
    token_type_ids: Sequence[list[int] | None] | None = None,
) -> dict[str, Tensor]:
    """Return the four inputs of the encoder, int64 tensors (R, T); `token_type_ids` None means all 0."""
    types = [None] * len(sequences) if token_type_ids is None else token_type_ids
    packed = pack_batch(list(zip(sequences, types, strict=True)), shape, starts)
    return {name: torch.from_numpy(values) for name, values in packed.inputs.items()}
