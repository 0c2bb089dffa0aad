"""The projection of hidden states onto the vocabulary: the head of a masked language model."""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from model.checkpoint_files import CheckpointError, require_finite
from model.heads.row_head import HeadLayout, RowHead


@dataclass(frozen=True)
class VocabularyLayout:
    """A masked-LM head: the layers before the projection onto the vocabulary, and that projection.

    Attributes:
        layers: The layers before the projection.
        decoder: The projection. Its own weight and bias take precedence over those that it is tied to.
        tied: A checkpoint without the weight of `decoder` uses the embedding table. If not tied, this is an error.
        tied_bias: The tensor that replaces the bias of `decoder` in a checkpoint without it; None without one.
        has_bias: `decoder` has a bias.
    """

    layers: HeadLayout
    decoder: str
    tied: bool
    tied_bias: str | None = None
    has_bias: bool = True

    @property
    def has_layers(self) -> bool:
        """Whether there are layers before the projection."""
        return self.layers.dense is not None or self.layers.norm is not None

    def is_in(self, tensors: Mapping[str, Tensor]) -> bool:
        """Return whether a checkpoint has the head. Checkpoints of the encoder alone may name it in config.json."""
        first = self.layers.dense or self.layers.norm
        if first is None:
            return self.tied or f"{self.decoder}.weight" in tensors
        return f"{first}.weight" in tensors


@dataclass(frozen=True)
class VocabularyHead:
    """A masked-LM head from a checkpoint: logits (N, V) = `layers(rows)` @ `decoder.T` + `bias` of rows (N, D).

    `layers` None means that the projection reads the hidden states. `decoder` is (V, E), `bias` (V).
    """

    layers: RowHead | None
    decoder: Tensor
    bias: Tensor | None


def read_vocabulary_head(
    layout: VocabularyLayout, tensors: Mapping[str, Tensor], embeddings: Tensor, hidden_size: int
) -> VocabularyHead:
    """Return the masked-LM head of a checkpoint.

    `tensors` have the names of the architecture, and `embeddings` is the embedding table, (V, E).

    Raises:
        CheckpointError: a tensor is missing or of the wrong shape.
    """
    layers = RowHead(layout.layers, tensors, hidden_size) if layout.has_layers else None
    decoder = find_decoder(f"{layout.decoder}.weight", tensors, embeddings, tied=layout.tied)
    width = hidden_size if layers is None else layers.out_features
    if decoder.shape != (len(decoder), width):
        raise CheckpointError(
            f"Weights: tensor {layout.decoder}.weight has an unexpected shape ({tuple(decoder.shape)}, expected "
            f"(V, {width})). Check config.json."
        )
    bias = _read_bias(layout, tensors)
    if bias is not None and bias.shape != (len(decoder),):
        raise CheckpointError(
            f"Weights: the bias of {layout.decoder} has an unexpected shape ({tuple(bias.shape)}, expected "
            f"({len(decoder)},)). Check config.json."
        )
    require_finite(decoder, f"{layout.decoder}.weight")
    return VocabularyHead(layers, decoder.float(), None if bias is None else bias.float())


def find_decoder(name: str, tensors: Mapping[str, Tensor], shared: Tensor, *, tied: bool) -> Tensor:
    """Return a tensor of the projection; if it is missing and `tied`, the tensor that it shares.

    Raises:
        CheckpointError: the tensor is missing and not tied.
    """
    if name not in tensors and not tied:
        raise CheckpointError(
            f"Weights: tensor {name} is missing, and tie_word_embeddings in config.json is false. Download the model "
            "again, or correct config.json."
        )
    return tensors.get(name, shared)


def _read_bias(layout: VocabularyLayout, tensors: Mapping[str, Tensor]) -> Tensor | None:
    """Return the bias of the projection; None if the checkpoint has none. Raises CheckpointError."""
    if not layout.has_bias:
        return None
    # transformers 4 shares the bias even if the projection is not tied, and its files then have `tied_bias` alone.
    name = next((name for name in (f"{layout.decoder}.bias", layout.tied_bias) if name in tensors), None)
    if name is None:
        return None
    require_finite(tensors[name], name)
    return tensors[name]
