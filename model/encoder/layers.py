"""The layers of an encoder, bottom-up: norms, positions, embeddings, feed-forward, attention, blocks."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from model.encoder.attention import AttentionMask, alibi, attend
from model.encoder.config import (
    ACTIVATIONS,
    DisentangledConfig,
    EncoderConfig,
    LayerConfig,
    RelativeConfig,
    RotaryConfig,
)


class RMSNorm(nn.Module):
    """Division by the root mean square, then a factor per channel (Zhang and Sennrich 2019).

    Checkpoints of Gemma store the factor minus 1; families/llama.py adds 1.
    """

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x: Tensor) -> Tensor:
        """Return `x / rms(x) * weight` over the last dimension, with the shape of `x`.

        Computed in float32, because squares of float16 values would overflow.
        """
        values = x.float() if x.dtype == torch.float16 else x
        scaled = values * torch.rsqrt(values.square().mean(dim=-1, keepdim=True) + self.eps)
        return scaled.to(x.dtype) * self.weight


def make_norm(config: EncoderConfig, size: int) -> nn.LayerNorm | RMSNorm:
    """Return a norm of the encoder over `size` channels."""
    if config.norm == "rms_norm":
        return RMSNorm(size, config.norm_eps)
    return nn.LayerNorm(size, eps=config.norm_eps, bias=config.norm == "layer_norm")


def sinusoids(positions: int, size: int) -> Tensor:
    """Return sinusoidal position embeddings, (positions, size), with values from -1 to 1.

    Vaswani et al. 2017, section 3.5.
    """
    rates = torch.exp(torch.arange(0, size, 2) * (-math.log(10_000) / size))
    angles = torch.arange(positions)[:, None] * rates
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1)


class RotaryEmbedding(nn.Module):
    """Rotations of pairs of channels by angles proportional to the position (Su et al. 2021, section 3.2).

    Channel k of a head is paired with channel k + d/2. Cosines and sines come from a table, because a bfloat16 angle
    would be meaningless at position 8,191. With dynamic scaling, angles depend on the sequence length, and are
    computed.
    """

    cos: Tensor
    sin: Tensor
    exponents: Tensor

    def __init__(self, config: RotaryConfig, head_size: int, positions: int) -> None:
        super().__init__()
        self.config = config
        self.head_size = head_size
        exponents = torch.arange(0, head_size, 2, dtype=torch.float32, device="cpu") / head_size  # also on "meta"
        if config.dynamic is None:
            frequencies = scale_frequencies(1.0 / config.base**exponents, config)
            angles = torch.arange(positions, dtype=torch.float32, device="cpu")[:, None] * frequencies
            self.register_buffer("cos", angles.cos(), persistent=False)  # (positions, d/2)
            self.register_buffer("sin", angles.sin(), persistent=False)
        else:
            self.register_buffer("exponents", exponents, persistent=False)

    def forward(self, position_ids: Tensor, lengths: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return cosines and sines, each (R, 1, T, d/2), for positions (R, T).

        `lengths` (R, T) contains the length of each token's sequence. If None, each row holds one sequence, or only
        sequences too short for scaling.
        """
        if self.config.dynamic is None:
            return F.embedding(position_ids, self.cos).unsqueeze(1), F.embedding(position_ids, self.sin).unsqueeze(1)
        if lengths is None:
            lengths = position_ids.amax(dim=1, keepdim=True) + 1
        angles = (position_ids.unsqueeze(-1) * self._frequencies(lengths, *self.config.dynamic)).unsqueeze(1)
        return angles.cos(), angles.sin()

    def _frequencies(self, lengths: Tensor, factor: float, length: int) -> Tensor:
        """Return the frequencies (R, T, d/2) for lengths (R, T)."""
        tokens = lengths.clamp(min=length).to(self.exponents.dtype)
        growth = (factor * tokens / length - (factor - 1)) ** (self.head_size / (self.head_size - 2))
        base = (self.config.base * growth).unsqueeze(-1)
        return 1.0 / base**self.exponents / self.config.divisor


def scale_frequencies(frequencies: Tensor, config: RotaryConfig) -> Tensor:
    """Return the frequencies (d/2,) divided by `divisor`; with `ramp`, only low frequencies are divided."""
    if config.ramp is None:
        return frequencies / config.divisor
    low, high, length = config.ramp
    turns = length * frequencies / (2 * math.pi)  # in n tokens
    kept = ((turns - low) / (high - low)).clamp(0, 1)
    return frequencies * (kept + (1 - kept) / config.divisor)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the pairs of channels of queries or keys (R, H, T, d)."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


class RelativeBias(nn.Module):
    """A learned score bias per head and distance bucket; see `RelativeConfig`."""

    def __init__(self, config: RelativeConfig, heads: int) -> None:
        super().__init__()
        self.config = config
        self.weight = nn.Parameter(torch.zeros(config.buckets, heads))

    def forward(self, position_ids: Tensor) -> Tensor:
        """Return the biases (R, H, T, T) for positions (R, T)."""
        offsets = position_ids.unsqueeze(1) - position_ids.unsqueeze(2)  # (R, T query, T key): key minus query
        return F.embedding(self.bucket(offsets), self.weight).permute(0, 3, 1, 2)

    def bucket(self, offsets: Tensor) -> Tensor:
        """Return the bucket of each key-minus-query offset; later keys use the upper half of the buckets."""
        half, exact = self.config.buckets // 2, self.config.buckets // 4
        distances = offsets.abs()
        octaves = torch.log(distances.clamp(min=1).float() / exact) / math.log(self.config.max_distance / exact)
        large = (exact + (octaves * (half - exact)).to(offsets.dtype)).clamp(max=half - 1)
        return torch.where(offsets > 0, half, 0) + torch.where(distances < exact, distances, large)


class AlibiBias(nn.Module):
    """A score bias that decreases with the distance of two tokens: attention with linear biases.

    Press et al. 2022, section 3: head h of n has the slope `2 ** (-8 (h + 1) / n)` if n is a power of 2. Otherwise, the
    heads after the largest power p use every other slope of 2 p heads. Distances to later keys also count here.
    """

    def __init__(self, heads: int) -> None:
        super().__init__()
        power = 2 ** (heads.bit_length() - 1)
        slopes = [2 ** (-8 * (head + 1) / power) for head in range(power)]
        slopes += [2 ** (-8 * (2 * head + 1) / (2 * power)) for head in range(heads - power)]
        self._slopes = slopes

    def slopes(self, device: torch.device) -> Tensor:
        """Return the slope of each head, float32 (H, 1, 1)."""
        return torch.tensor(self._slopes, device=device).view(-1, 1, 1)

    def forward(self, position_ids: Tensor) -> Tensor:
        """Return the biases (R, H, T, T) for positions (R, T)."""
        return alibi(position_ids, position_ids, self.slopes(position_ids.device))


class DistanceEmbeddings(nn.Module):
    """The embeddings of distances that all layers of an encoder share; see `DisentangledConfig`."""

    def __init__(self, config: DisentangledConfig, size: int, eps: float, positions: int) -> None:
        super().__init__()
        self.positions = positions
        self.weight = nn.Parameter(torch.zeros(2 * config.span, size))
        self.norm = nn.LayerNorm(size, eps) if config.norm else nn.Identity()
        offsets = torch.arange(1 - positions, positions, device="cpu")  # also while the weights are on "meta"
        # Stored as a table, because bucket bounds depend on the last bit of a logarithm.
        self._rows = (self.bucket(offsets, config) + config.span).clamp(0, 2 * config.span - 1).tolist()

    @staticmethod
    def bucket(offsets: Tensor, config: DisentangledConfig) -> Tensor:
        """Return the bucket of each query-minus-key offset, in float32 like the published code."""
        if not config.max_distance:
            return offsets
        exact = config.span // 2
        distances = offsets.abs().clamp(min=exact)
        longest = torch.tensor((config.max_distance - 1) / exact, device=offsets.device)
        octaves = torch.log(distances / exact) / torch.log(longest)
        large = (torch.ceil(octaves * (exact - 1)) + exact).to(offsets.dtype)
        return torch.where(offsets.abs() <= exact, offsets, large * offsets.sign())

    def rows(self, device: torch.device | None = None) -> Tensor:
        """Return the row of each query-minus-key offset, starting at `1 - positions`, int64."""
        return torch.tensor(self._rows, device=device)

    def embeddings(self) -> Tensor:
        """Return the embeddings (2 span, D)."""
        embeddings: Tensor = self.norm(self.weight)
        return embeddings

    def forward(self, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return the embeddings (2 span, D), and the row of each query and key, (R, T, T), for positions (R, T)."""
        offsets = position_ids.unsqueeze(2) - position_ids.unsqueeze(1)
        return self.embeddings(), self.rows(offsets.device).take(offsets + self.positions - 1)


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
        self.task_type_embeddings = (
            nn.Embedding(config.task_type_vocab_size, size) if config.task_type_vocab_size else None
        )
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
        if self.task_type_embeddings is not None:
            summed = summed + self.task_type_embeddings.weight[0]
        projected: Tensor = self.project(self.norm(summed))  # (R, T, D)
        return projected


class FeedForward(nn.Module):
    """Two linear layers with an activation between them (Vaswani et al. 2017, section 3.3).

    With a gate, it is `outer(activation(gate(x)) * inner(x))` (Shazeer 2020).
    """

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        size, inner, bias = config.hidden_size, config.intermediate_size, config.feed_forward_bias
        self.gate = nn.Linear(size, inner, bias) if config.gated else None
        self.inner = nn.Linear(size, inner, bias)
        self.outer = nn.Linear(inner, size, config.feed_forward_output_bias)
        self.activation = ACTIVATIONS[config.hidden_act]

    def forward(self, x: Tensor) -> Tensor:
        """Return (R, T, D)."""
        inner = self.inner(x)
        out: Tensor = self.outer(self.activation(inner) if self.gate is None else self.activation(self.gate(x)) * inner)
        return out


@dataclass(frozen=True)
class AttentionInputs:
    """The inputs of attention other than hidden states. Layers with the same options share them.

    `mask`: additive, (R, 1 or H, T, T), including the relative position bias if any; or an `AttentionMask` for long
    rows. `rotation`: the cosines and sines of rotary position embeddings, (R, 1, T, d/2) each. `distances`: the result
    of `DistanceEmbeddings`.
    """

    mask: Tensor | AttentionMask
    rotation: tuple[Tensor, Tensor] | None = None
    distances: tuple[Tensor, Tensor] | None = None


class SelfAttention(nn.Module):
    """Multi-head scaled dot-product self-attention (Vaswani et al. 2017, section 3.2).

    With G < H key/value heads, each is shared by H/G query heads (Ainslie et al. 2023). Queries and keys may be
    rotated, and normalized per head (Henry et al. 2020) or over all heads.
    """

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.num_heads = config.num_attention_heads
        self.num_key_value_heads = config.num_key_value_heads
        self.head_size = config.head_size
        self.scale = config.attention_scale
        size, bias = config.hidden_size, config.attention_bias
        self.query = nn.Linear(size, config.head_size * self.num_heads, bias)
        self.key = nn.Linear(size, config.head_size * self.num_key_value_heads, bias)
        self.value = nn.Linear(size, config.head_size * self.num_key_value_heads, bias)
        self.output = nn.Linear(config.head_size * self.num_heads, size, config.attention_output_bias)
        self.disentangled = config.disentangled
        if config.disentangled is not None and not config.disentangled.shared:
            for name, is_used in (
                ("distance_key", config.disentangled.content_to_position),
                ("distance_query", config.disentangled.position_to_content),
            ):
                if is_used:
                    self.add_module(name, nn.Linear(size, config.head_size * self.num_heads))
        self.joint_norm = config.joint_query_key_norm
        self.query_norm, self.key_norm = (_make_head_norm(config) for _ in range(2))

    def forward(self, x: Tensor, inputs: AttentionInputs) -> Tensor:
        """Return the output (R, T, D)."""
        q, k, v = self.project(x, inputs.rotation)
        if isinstance(inputs.mask, AttentionMask):
            context = attend(q, k, v, inputs.mask, self.scale)  # (R, H, T, d)
        else:
            context = self.scores(q, k, inputs.mask, inputs.distances).softmax(dim=-1) @ v
        output: Tensor = self.output(context.transpose(1, 2).flatten(2))
        return output

    def scores(self, q: Tensor, k: Tensor, mask: Tensor, distances: tuple[Tensor, Tensor] | None = None) -> Tensor:
        """Return the masked scores (R, H, Q, T), before the softmax, of queries (R, H, Q, d)."""
        scores = q @ k.transpose(-2, -1) * self.scale + mask
        return scores if distances is None else scores + self.distance_scores(q, k, *distances)

    def distance_scores(self, q: Tensor, k: Tensor, embeddings: Tensor, rows: Tensor) -> Tensor:
        """Return the distance part of the scores, (R, H, Q, T): the sum of `distance_terms`."""
        return sum(self.distance_terms(q, k, embeddings, rows).values(), q.new_zeros(()))

    def distance_terms(self, q: Tensor, k: Tensor, embeddings: Tensor, rows: Tensor) -> dict[str, Tensor]:
        """Return the terms of disentangled attention that the model uses, by name, (R, H, Q, T) each.

        `embeddings` are (2 span, D), and `rows` (R, Q, T) are indices into them. He et al. 2021, equation 4, except
        that both terms use the distance from query to key, as in the published code.
        """
        keys, queries = self.project_distances(embeddings)
        index = rows.unsqueeze(1).expand(-1, self.num_heads, -1, -1)
        terms: dict[str, Tensor] = {}
        if keys is not None:
            terms["content_to_position"] = (q @ keys.transpose(-2, -1)).gather(3, index) * self.scale
        if queries is not None:
            by_key = (k @ queries.transpose(-2, -1)).gather(3, index.transpose(2, 3))  # (R, H, T, Q)
            terms["position_to_content"] = by_key.transpose(2, 3) * self.scale
        return terms

    def project_distances(self, embeddings: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """Return the distance keys and queries, (1, H, 2 span, d) each; None for a term that the model does not use."""
        options, keys, queries = self.disentangled, None, None
        assert options is not None
        if options.content_to_position:
            project = self.key if options.shared else self.get_submodule("distance_key")
            keys = self._split(project(embeddings).unsqueeze(0), self.num_heads)
        if options.position_to_content:
            project = self.query if options.shared else self.get_submodule("distance_query")
            queries = self._split(project(embeddings).unsqueeze(0), self.num_heads)
        return keys, queries

    def project(self, x: Tensor, rotation: tuple[Tensor, Tensor] | None) -> tuple[Tensor, Tensor, Tensor]:
        """Return the queries, keys and values of all heads, (R, H, T, d) each."""
        q, k, v = self.query(x), self.key(x), self.value(x)
        if self.joint_norm:
            q, k = self.query_norm(q), self.key_norm(k)
        q = self._split(q, self.num_heads)  # (R, H, T, d)
        k, v = (self._split(part, self.num_key_value_heads) for part in (k, v))  # (R, G, T, d)
        if not self.joint_norm:
            q, k = self.query_norm(q), self.key_norm(k)
        if rotation is not None:
            q, k = rotate(q, *rotation), rotate(k, *rotation)
        return q, self._repeat(k), self._repeat(v)

    def _split(self, x: Tensor, heads: int) -> Tensor:
        rows, tokens, _ = x.shape
        return x.view(rows, tokens, heads, self.head_size).transpose(1, 2)  # (R, heads, T, d)

    def _repeat(self, x: Tensor) -> Tensor:
        """Repeat the keys or values of each group for its query heads."""
        if self.num_heads == self.num_key_value_heads:
            return x
        return x.repeat_interleave(self.num_heads // self.num_key_value_heads, dim=1)


def _make_head_norm(config: EncoderConfig) -> nn.Module:
    """Return the norm of queries or of keys."""
    if config.joint_query_key_norm:
        return make_norm(config, config.head_size * config.num_attention_heads)
    return RMSNorm(config.head_size, config.norm_eps) if config.query_key_norm else nn.Identity()


class Block(nn.Module):
    """The attention and the feed-forward network of one layer, each with a residual connection and norms.

    - "post": a norm after each residual connection (Vaswani et al. 2017): `x = N(x + f(x))`.
    - "double_post": as "post", with a second residual connection around attention: `x = N2(x + N(x + f(x)))`.
    - "pre": a norm before attention and feed-forward (Xiong et al. 2020): `x = x + f(N(x))`.
    - "sandwich": norms before and after them (Ding et al. 2021): `x = x + N2(f(N1(x)))`.
    """

    def __init__(self, config: EncoderConfig, layer: LayerConfig) -> None:
        super().__init__()
        self.kind = config.block
        self.norm_before_attention = config.norms_first
        self.attention = SelfAttention(config)
        has_norm = layer.attention_norm or config.block != "pre"
        self.attention_norm = make_norm(config, config.hidden_size) if has_norm else nn.Identity()
        if config.block == "sandwich":
            self.attention_output_norm = make_norm(config, config.hidden_size)
        if config.block == "double_post":
            self.residual_norm = make_norm(config, config.hidden_size)
        self.feed_forward = FeedForward(config)
        self.feed_forward_norm = make_norm(config, config.hidden_size)
        if config.block == "sandwich":
            self.feed_forward_output_norm = make_norm(config, config.hidden_size)

    @property
    def mixed_norm(self) -> nn.LayerNorm | RMSNorm:
        """The norm that reads the attention output, before or after the residual is added."""
        if self.kind == "pre":
            return self.feed_forward_norm
        norm = self.attention_output_norm if self.kind == "sandwich" else self.attention_norm
        assert not isinstance(norm, nn.Identity)
        return norm

    def forward(self, x: Tensor, inputs: AttentionInputs) -> Tensor:
        """Return the hidden state (R, T, D)."""
        _, x = self.add_attention(x, self.attention(self.read(x), inputs))
        _, x = self.add_feed_forward(x)
        return x

    def read(self, x: Tensor) -> Tensor:
        """Return the input of the query, key and value projections: the residual stream, normalized in some blocks."""
        return self.attention_norm(x) if self.norm_before_attention else x

    def add_attention(self, x: Tensor, attended: Tensor) -> tuple[Tensor, Tensor]:
        """Return the term that attention adds to the residual stream `x`, and the stream after it.

        `attended` is the output of the attention.
        """
        if not self.norm_before_attention:
            stream = self.attention_norm(x + attended)
            return attended, self.residual_norm(x + stream) if self.kind == "double_post" else stream
        term = self.attention_output_norm(attended) if self.kind == "sandwich" else attended
        return term, x + term

    def add_feed_forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the term that the feed-forward network adds to the residual stream `x`, and the stream after it."""
        if not self.norm_before_attention:
            term = self.feed_forward(x)
            return term, self.feed_forward_norm(x + term)
        term = self.feed_forward(self.feed_forward_norm(x))
        if self.kind == "sandwich":
            term = self.feed_forward_output_norm(term)
        return term, x + term
