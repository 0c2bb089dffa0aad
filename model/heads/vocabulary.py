"""The projection of hidden states onto the vocabulary: the head of a masked language model."""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from model.checkpoint_files import CheckpointError
from model.heads.row_head import HeadLayout, RowHead


@dataclass(frozen=True)
class VocabularyLayout:
    """A masked-LM head: the layers before the projection onto the vocabulary, and that projection.

    `decoder` is tied to the embedding table if a checkpoint lacks it. One of the `biases` is in a checkpoint, or none.
    """

    layers: HeadLayout
    decoder: str
    biases: tuple[str, ...]

    @property
    def has_layers(self) -> bool:
        """Whether there are layers before the projection."""
        return self.layers.dense is not None or self.layers.norm is not None

    def is_in(self, tensors: Mapping[str, Tensor]) -> bool:
        """Return whether a checkpoint has the head. Checkpoints of the encoder alone may name it in config.json."""
        first = self.layers.dense or self.layers.norm or self.decoder
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
    decoder = tensors.get(f"{layout.decoder}.weight", embeddings)
    width = hidden_size if layers is None else layers.out_features
    if decoder.shape != (len(decoder), width):
        raise CheckpointError(
            f"Weights: tensor {layout.decoder}.weight has an unexpected shape ({tuple(decoder.shape)}, expected "
            f"(V, {width})). Check config.json."
        )
    bias = next((tensors[name] for name in layout.biases if name in tensors), None)
    return VocabularyHead(layers, decoder.float(), None if bias is None else bias.float())
