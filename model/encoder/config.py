"""Encoder configuration. Defaults are BERT's."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from torch import Tensor
from torch.nn import functional as F


def gelu_tanh(x: Tensor) -> Tensor:
    """Return the tanh approximation of GELU (Hendrycks & Gimpel 2016)."""
    return F.gelu(x, approximate="tanh")


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_accurate": gelu_tanh,
    "gelu_fast": gelu_tanh,
    "gelu_new": gelu_tanh,
    "gelu_python": F.gelu,
    "gelu_python_tanh": gelu_tanh,
    "gelu_pytorch_tanh": gelu_tanh,
    "relu": F.relu,
    "silu": F.silu,
    "swish": F.silu,
}


BlockKind = Literal["post", "double_post", "pre", "sandwich"]
NormKind = Literal["layer_norm", "layer_norm_without_bias", "rms_norm"]


@dataclass(frozen=True)
class RotaryConfig:
    """Rotary position embeddings (Su et al. 2021): frequency k is `base ** (-2k / d) / divisor`.

    `dynamic` is (factor f, length n) of dynamic NTK scaling: in a sequence of T > n tokens, `base` is multiplied by
    `(f T / n - (f - 1)) ** (d / (d - 2))`.

    `ramp` is (l, h, length n) of Llama 3.1: only frequencies below `2 pi l / n` are divided by `divisor`, those above
    `2 pi h / n` are not, and between them the factor is interpolated.
    """

    base: float
    divisor: float = 1.0
    dynamic: tuple[float, int] | None = None
    ramp: tuple[float, float, int] | None = None


@dataclass(frozen=True)
class RelativeConfig:
    """A learned score bias per head and distance bucket, as in T5 (Raffel et al. 2020, section 2.1).

    Half of the `buckets` are for later keys. In each half, half of the buckets cover one distance each, and the others
    cover logarithmic ranges up to `max_distance`.
    """

    buckets: int = 32
    max_distance: int = 128


@dataclass(frozen=True)
class DisentangledConfig:
    """Disentangled attention (He et al. 2021, section 3.1): scores depend on the content and distance of two tokens.

    There are `2 span` distance embeddings of size D, for keys up to `span - 1` tokens before the query and `span` after
    it. With `max_distance`, distances over `span / 2` share embeddings in logarithmic buckets.

    Attributes:
        content_to_position: Queries are multiplied by distance keys.
        position_to_content: Keys are multiplied by distance queries.
        shared: Layers compute distance keys and queries with the projections for tokens.
        norm: The embeddings are normalized.
    """

    span: int
    max_distance: int = 0
    content_to_position: bool = True
    position_to_content: bool = True
    shared: bool = True
    norm: bool = True

    @property
    def terms(self) -> tuple[str, ...]:
        """The names of the terms that are added to the scores."""
        return tuple(name for name in ("content_to_position", "position_to_content") if getattr(self, name))


@dataclass(frozen=True)
class LayerConfig:
    """The options that can differ between layers of an encoder.

    `window`: tokens attend to tokens at most this far away in both directions; None means all tokens. If
    `attention_norm` is False, a pre-norm block has no norm before attention.
    """

    window: int | None = None
    rotary: RotaryConfig | None = None
    attention_norm: bool = True


@dataclass(frozen=True)
class EncoderConfig:
    """The sizes and parts of an encoder. Sizes have the names used in Hugging Face's config.json.

    Attributes:
        max_position_embeddings: The number of usable positions: RoBERTa's table has more rows.
        type_vocab_size: 0 means that there are no token types.
        task_type_vocab_size: The number of task embeddings; the first is added to every token. 0 means none.
        norm_eps: The epsilon of all norms.
        embedding_size: 0 means `hidden_size`.
        causal: Tokens do not attend to later tokens.
        position_table: Learned or sinusoidal position embeddings are added to the token embeddings.
        embedding_scale: A factor of the token embeddings.
        num_key_value_heads: 0 means `num_attention_heads`. With fewer, several query heads share a key and a value.
        head_size: 0 means `hidden_size / num_attention_heads`.
        attention_scale: The factor of the dot products; 0 means `head_size ** -0.5`.
        attention_bias: The linear maps of queries, keys and values have biases.
        attention_output_bias: The linear map of the attention output has a bias.
        query_key_norm: Queries and keys are normalized per head.
        joint_query_key_norm: The queries, and the keys, of all heads are normalized together.
        relative_bias: A learned score bias depends on the distance of two tokens. All layers share it.
        alibi: A fixed score bias is proportional to the distance of two tokens.
        disentangled: Scores depend on embeddings of distances.
        gated: The feed-forward network is gated.
        feed_forward_bias: The inner linear maps of the feed-forward network have biases.
        feed_forward_output_bias: The outer linear map of the feed-forward network has a bias.
        layers: One per layer; () selects the defaults for all layers.
    """

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    intermediate_size: int
    max_position_embeddings: int
    type_vocab_size: int
    norm_eps: float
    hidden_act: str = "gelu"
    embedding_size: int = 0
    task_type_vocab_size: int = 0
    causal: bool = False
    block: BlockKind = "post"
    norm: NormKind = "layer_norm"
    position_table: bool = True
    embedding_norm: bool = True
    embedding_scale: float = 1.0
    num_key_value_heads: int = 0
    head_size: int = 0
    attention_scale: float = 0.0
    attention_bias: bool = True
    attention_output_bias: bool = True
    query_key_norm: bool = False
    joint_query_key_norm: bool = False
    relative_bias: RelativeConfig | None = None
    alibi: bool = False
    disentangled: DisentangledConfig | None = None
    gated: bool = False
    feed_forward_bias: bool = True
    feed_forward_output_bias: bool = True
    layers: tuple[LayerConfig, ...] = ()

    def __post_init__(self) -> None:
        if self.num_attention_heads < 1 or (not self.head_size and self.hidden_size % self.num_attention_heads):
            raise ValueError("hidden_size: not a multiple of num_attention_heads")
        defaults = {
            "embedding_size": self.hidden_size,
            "num_key_value_heads": self.num_attention_heads,
            "head_size": self.hidden_size // self.num_attention_heads,
            "layers": (LayerConfig(),) * self.num_hidden_layers,
        }
        for name, value in defaults.items():
            if not getattr(self, name):
                object.__setattr__(self, name, value)
        if not self.attention_scale:
            object.__setattr__(self, "attention_scale", self.head_size**-0.5)
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError("num_attention_heads: not a multiple of num_key_value_heads")
        if len(self.layers) != self.num_hidden_layers:
            raise ValueError(f"layers: not num_hidden_layers ({len(self.layers)}, {self.num_hidden_layers})")
        if self.joint_query_key_norm and (self.query_key_norm or self.num_key_value_heads != self.num_attention_heads):
            raise ValueError("joint_query_key_norm: not supported with query_key_norm or grouped queries")
        if self.alibi and (self.causal or self.relative_bias or any(layer.window is not None for layer in self.layers)):
            raise ValueError("alibi: not supported with causal, relative_bias or windows")
        if self.hidden_act not in ACTIVATIONS:
            raise ValueError(f"hidden_act: unsupported value {self.hidden_act!r}")

    @property
    def has_position_bias(self) -> bool:
        """Whether the attention scores include a bias for the distance between two tokens."""
        has_terms = self.disentangled is not None and len(self.disentangled.terms) > 0
        return self.relative_bias is not None or self.alibi or has_terms

    @property
    def norms_first(self) -> bool:
        """True if blocks normalize their inputs (pre-norm and sandwich blocks), and a norm follows the last block."""
        return self.block in ("pre", "sandwich")
