"""Embeddings of tokens."""

from torch import Tensor, nn

from model.encoder.config import EncoderConfig
from model.encoder.norms import make_norm


class Embeddings(nn.Module):
    """The normalized sum of token, position and token type embeddings, projected to D if E is not D.

    Encoders with rotary positions have no position embeddings, and some have no token types or no norm.
    """

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        size = config.embedding_size
        self.scale = config.embedding_scale
        self.word_embeddings = nn.Embedding(config.vocab_size, size)
        self.position_embeddings = nn.Embedding(config.max_position_embeddings, size) if config.position_table else None
        self.token_type_embeddings = nn.Embedding(config.type_vocab_size, size) if config.type_vocab_size else None
        self.norm = make_norm(config, size) if config.embedding_norm else nn.Identity()
        self.project = nn.Identity() if size == config.hidden_size else nn.Linear(size, config.hidden_size)

    def forward(self, input_ids: Tensor, position_ids: Tensor, token_type_ids: Tensor) -> Tensor:
        """Return (R, T, D) for three integer tensors (R, T)."""
        summed: Tensor = self.word_embeddings(input_ids)  # (R, T, E)
        if self.scale != 1.0:
            summed = summed * self.scale
        if self.position_embeddings is not None:
            summed = summed + self.position_embeddings(position_ids)
        if self.token_type_embeddings is not None:
            summed = summed + self.token_type_embeddings(token_type_ids)
        projected: Tensor = self.project(self.norm(summed))  # (R, T, D)
        return projected
