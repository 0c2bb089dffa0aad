"""Golden vectors: the float32 results of a model's heads for a few texts, used to check each backend at every start.

The texts are fixed, so that two exports of a model can be compared. They contain 3 to about 60 tokens, in several
languages, with digits and rare words, because rounding errors depend on the activations. After tokenization, this
module shares no code with the server, so that the comparison detects an error in any step.
"""

import base64
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from model.artifact.manifest import (
    SPARSE_ENTRIES,
    ClassificationHead,
    GoldenHead,
    GoldenOutput,
    GoldenVectors,
    Manifest,
    MultiVectorHead,
    RetrievalRole,
    SparseActivation,
    SparseHead,
)
from model.artifact.tokenizer import TokenizedInput, Tokenizer, TokenizerInput
from model.checkpoint import Checkpoint
from model.export.parity import make_sequence, pool
from model.source.published import CheckpointError

TEXTS = (
    "bank",
    "The bank of the river is steep.",
    "She opened an account at the bank.",
    "Red, green and blue.",
    "How do I reset my password?",
    "Reset your password in the settings under Security.",
    "2 + 2 = 4, and 17 is prime.",
    "On 3 March 1998 the temperature fell to -12.5 degrees.",
    "The committee has not yet decided whether the proposal will be accepted.",
    "Whether the proposal will be accepted, the committee has not yet decided.",
    "An encoder reads a whole sentence at once, so that each word can depend on the words before and after it.",
    "Der Zug nach Hamburg hat heute eine halbe Stunde Verspätung.",
    "Le marché ouvre à sept heures, sauf le dimanche.",
    "El perro duerme al sol delante de la casa.",
    "La nave parte domani mattina presto dal porto vecchio.",
    "Кошка спит на тёплом подоконнике.",
    "今日は天気がいいので、公園を散歩しました。",
    "图书馆周一不开放。",
    "Photosynthesis converts carbon dioxide and water into glucose and oxygen.",
    "def add(a, b): return a + b",
    "SELECT name FROM users WHERE age > 30 ORDER BY name;",
    "https://example.org/path?query=1#fragment",
    "No.",
    "Is it?",
    "It was raining, it was dark, and nobody had remembered to bring the key.",
    "Heat the oil, add the onions, and stir until they are soft and golden.",
    "The defendant shall pay the costs of the proceedings, including those of the appeal, within thirty days.",
    "Antidisestablishmentarianism is a long word; floccinaucinihilipilification is longer.",
    "aaaa bbbb cccc dddd eeee ffff",
    "Once upon a time there was a mill by a stream, and in the mill lived an old man, his three daughters and a gray "
    "cat that caught no mice, but sat by the window all day long and watched the water turn the wheel.",
    "Kaip sekasi? Hvordan går det? Jak się masz? Πώς είσαι;",
    "The patient, aged 54, reported chest pain; ECG and troponin were normal, and she was discharged with aspirin.",
)

FEW = range(0, len(TEXTS), 4)
"""Texts for heads with large results, or heads whose check multiplies with the whole vocabulary at every start."""
PREDICTED_WORDS = 32


def compute_golden_vectors(checkpoint: Checkpoint, manifest: Manifest) -> GoldenVectors:
    """Return the results of all heads. Raises CheckpointError if a value is NaN or infinite."""
    with torch.inference_mode():
        heads = dict(_Reference(checkpoint, manifest, checkpoint.text_tokenizer()).heads())
    return GoldenVectors(texts=TEXTS, heads=heads)


@dataclass(frozen=True)
class _Reference:
    """The model in PyTorch. Each text is a separate batch."""

    checkpoint: Checkpoint
    manifest: Manifest
    tokenizer: Tokenizer

    def heads(self) -> Iterator[tuple[GoldenOutput, GoldenHead]]:
        """Yield the results of each head."""
        tokens = [self._truncate(item) for item in self.tokenizer.encode([TokenizerInput(text) for text in TEXTS])]
        hidden = [self._encode(item) for item in tokens]
        every = range(len(TEXTS))
        yield _store("embedding", every, [self._embed(rows) for rows in hidden])
        if (classifier := self.manifest.classification) is not None:
            if classifier.template is not None or len(classifier.labels) == 1:
                tokens_read = self._pairs(classifier)
                logits = [self._classify(item, self._encode(item)) for item in tokens_read]
            else:
                logits = [self._classify(item, rows) for item, rows in zip(tokens, hidden, strict=True)]
            yield _store("classification", every, logits)
        if (labels := self.checkpoint.token_classifier) is not None:
            yield _store("token_classification", every, [labels.head(rows) for rows in hidden])
        if self.checkpoint.masked_lm is not None:
            predicted = [self._predict(hidden[place]) for place in FEW]
            yield _store("masked_lm", FEW, [row.values for row in predicted], [row.indices for row in predicted])
        if (sparse := self.manifest.sparse) is not None:
            weighed = [self._weigh(sparse, tokens[place].input_ids, hidden[place]) for place in FEW]
            yield _store("sparse", FEW, [weights for _, weights in weighed], [ids for ids, _ in weighed])
        if (vectors := self.manifest.multi_vector) is not None:
            if not vectors.has_sides:
                rows_of = [hidden[place][int(vectors.skips_first) :] for place in FEW]
                yield _store("multi_vector", FEW, [self._project(rows) for rows in rows_of])
                return
            yield _store("multi_vector", FEW, [self._interact(vectors, "document", TEXTS[place]) for place in FEW])
            yield _store("multi_vector_query", FEW, [self._interact(vectors, "query", TEXTS[place]) for place in FEW])

    def _truncate(self, tokens: TokenizedInput) -> TokenizedInput:
        return tokens.truncate(self.manifest.max_input_tokens, self.manifest.truncation_side)

    def _encode(self, tokens: TokenizedInput) -> Tensor:
        """Return the last hidden states (T, D)."""
        return self._run(tokens.input_ids, tokens.token_type_ids, 0)

    def _run(self, ids: Sequence[int], types: Sequence[int], unattended: int) -> Tensor:
        """Return the last hidden states (T, D); no token attends to the last `unattended` tokens."""
        encoder = self.checkpoint.encoder
        inputs = make_sequence(ids, types if encoder.config.type_vocab_size > 1 else [0] * len(ids))
        inputs["sequence_ids"][:, len(ids) - unattended :] *= -1
        hidden: Tensor = encoder(**{name: torch.from_numpy(values) for name, values in inputs.items()})[0]
        return hidden

    def _embed(self, hidden: Tensor) -> Tensor:
        config = self.checkpoint.embedding_config
        pooled = pool(hidden, config.pooling)
        for layer in config.dense:
            pooled = layer(pooled)
        if config.normalize:
            pooled = torch.nn.functional.normalize(pooled, dim=0)
        return pooled[: self.manifest.embedding.truncate_dim]

    def _pairs(self, head: ClassificationHead) -> list[TokenizedInput]:
        """Return each text and the next one as a pair."""
        encoded: list[TokenizedInput] = []
        for first, second in zip(TEXTS, (*TEXTS[1:], TEXTS[0]), strict=True):
            if head.template is None:
                encoded += self.tokenizer.encode_pairs(first, [second])
            else:
                encoded += self.tokenizer.encode_template(head.template, first, [second])
        return [self._truncate(tokens) for tokens in encoded]

    def _classify(self, tokens: TokenizedInput, hidden: Tensor) -> Tensor:
        """Return the logits (C)."""
        classifier = self.checkpoint.classifier
        assert classifier is not None
        pooling, skipped = classifier.record.pooling, classifier.record.skipped_token_id
        if pooling == "mean_logits":
            logits: Tensor = classifier.head(hidden).mean(dim=0)
            return logits
        if pooling != "last":
            row = pool(hidden, pooling)
        else:
            read = [place for place, number in enumerate(tokens.input_ids) if number != skipped]
            row = hidden[read[-1] if read else -1]
        own: Tensor = classifier.head(row[None])[0]
        return own

    def _predict(self, hidden: Tensor) -> torch.return_types.topk:
        """Return the most likely words at the middle token."""
        assert self.checkpoint.masked_lm is not None
        head, row = self.checkpoint.masked_lm.head, hidden[len(hidden) // 2]
        features = row if head.layers is None else head.layers(row[None])[0]
        probabilities = torch.nn.functional.linear(features, head.decoder, head.bias).softmax(dim=0)
        return probabilities.topk(min(PREDICTED_WORDS, len(probabilities)))

    def _weigh(self, record: SparseHead, input_ids: Sequence[int], hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Return the vocabulary entries with the largest positive weights, and the weights."""
        sparse = self.checkpoint.sparse
        assert sparse is not None
        features = hidden if sparse.head is None else sparse.head(hidden)
        if sparse.decoder is None:
            size = self.checkpoint.encoder.config.vocab_size
            of_tokens = _activate(features[:, 0], sparse.activation)
            weights = torch.zeros(size).scatter_reduce(0, torch.tensor(input_ids), of_tokens, "amax")
        else:
            of_tokens = _activate(torch.nn.functional.linear(features, sparse.decoder, sparse.bias), sparse.activation)
            weights = of_tokens.sum(dim=0) if sparse.pooling == "sum" else of_tokens.max(dim=0).values
        weights[[number for number in record.skipped_token_ids if number < len(weights)]] = 0
        count = min(record.max_active or SPARSE_ENTRIES, SPARSE_ENTRIES, int((weights > 0).sum()))
        top = weights.topk(count) if bool(weights.isfinite().all()) else weights.topk(1)
        return top.indices, top.values

    def _interact(self, head: MultiVectorHead, side: RetrievalRole, text: str) -> Tensor:
        """Return the token vectors of a text with its marker and, for a query, its expansion."""
        record = head.query if side == "query" else head.document
        limit = self.manifest.role_max_tokens.get(side, self.manifest.max_input_tokens)
        limit = min(limit, record.max_tokens or limit)
        marker = [] if record.marker is None else [record.marker]
        (tokens,) = self.tokenizer.encode([TokenizerInput(text)])
        tokens = tokens.truncate(limit - len(marker), self.manifest.truncation_side)
        place = self.tokenizer.leading_special_tokens
        ids, types = list(tokens.input_ids), list(tokens.token_type_ids)
        ids[place:place], types[place:place] = marker, [0] * len(marker)
        expansion, unattended = head.expansion if side == "query" else None, 0
        if expansion is not None:
            added = max(0, expansion.length - len(ids))
            ids, types = ids + [expansion.token_id] * added, types + [0] * added
            unattended = 0 if expansion.attended else added
        hidden = self._run(ids, types, unattended)
        skipped = {*head.skipped_token_ids} if side == "document" else set()
        kept = [place for place, number in enumerate(ids) if number not in skipped]
        return self._project(hidden[[place for place in kept if place or not head.skips_first]])

    def _project(self, rows: Tensor) -> Tensor:
        assert self.checkpoint.multi_vector is not None
        return torch.nn.functional.normalize(self.checkpoint.multi_vector.head(rows), dim=1)


def _activate(logits: Tensor, activation: SparseActivation) -> Tensor:
    weights = logits.relu()
    for _ in range({"relu": 0, "log1p_relu": 1, "log1p_log1p_relu": 2}[activation]):
        weights = weights.log1p()
    return weights


def _store(
    name: GoldenOutput, texts: range, results: Sequence[Tensor], ids: Sequence[Tensor] | None = None
) -> tuple[GoldenOutput, GoldenHead]:
    """Return the record of a head. Raises CheckpointError."""
    for place, values in zip(texts, results, strict=True):
        if not bool(values.isfinite().all()):
            raise CheckpointError(
                f"Weights: NaN or infinity in the {name} of the text {TEXTS[place]!r}. Download the model again."
            )
    entries = None if ids is None else base64.b64encode(_flatten(ids).astype("<i4").tobytes()).decode()
    encoded = base64.b64encode(_flatten(results).astype("<f4").tobytes()).decode()
    sizes = tuple(part.numel() for part in results)
    return name, GoldenHead(texts=tuple(texts), sizes=sizes, values=encoded, ids=entries)


def _flatten(parts: Sequence[Tensor]) -> NDArray[Any]:
    values: NDArray[Any] = torch.cat([part.reshape(-1) for part in parts]).numpy()
    return values
