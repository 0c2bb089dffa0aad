"""The encoder alone: what attention may see, and what packing must not change."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from model.encoder import ACTIVATIONS, Encoded, Encoder, EncoderConfig, block_diagonal_mask

CONFIG = EncoderConfig(
    vocab_size=53,
    width=15,
    layers=3,
    heads=5,
    feed_forward_width=29,
    max_positions=31,
    types=2,
    layer_norm_eps=1e-12,
)
LENGTHS = (7, 1, 11, 4)


@pytest.fixture
def encoder() -> Encoder:
    """Random weights large enough that attention is far from even."""
    torch.manual_seed(11)
    made = Encoder(CONFIG).eval()
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            parameter.normal_(1.0 if name.endswith("norm.weight") else 0.0, 0.5)
    return made


def random_ids(*shape: int) -> Tensor:
    return torch.randint(0, CONFIG.vocab_size, shape, generator=torch.Generator().manual_seed(3))


def encode(encoder: Encoder, ids: Tensor, positions: Tensor, segments: Tensor) -> Encoded:
    with torch.inference_mode():
        return encoder.encode(ids, positions, ids % CONFIG.types, segments)


def packed() -> tuple[Tensor, Tensor, Tensor]:
    """Ids, positions and segments of four texts in one row, `(1, 23)` each."""
    positions = torch.cat([torch.arange(length) for length in LENGTHS])[None]
    segments = torch.repeat_interleave(torch.arange(1, 5), torch.tensor(LENGTHS))[None]
    return random_ids(1, sum(LENGTHS)), positions, segments


def test_shapes(encoder: Encoder) -> None:
    """L+1 hidden states of `(R, T, D)` and L maps of `(R, H, T, T)`."""
    encoded = encode(encoder, random_ids(2, 13), torch.arange(13).expand(2, -1), torch.ones(2, 13))
    assert [tuple(hidden.shape) for hidden in encoded.hidden] == [(2, 13, 15)] * 4
    assert [tuple(probs.shape) for probs in encoded.probs] == [(2, 5, 13, 13)] * 3


def test_forward_is_the_last_hidden_layer(encoder: Encoder) -> None:
    """The exported pass and the explaining pass are one."""
    ids, positions, segments = packed()
    with torch.inference_mode():
        last = encoder(ids, positions, ids % CONFIG.types, segments)
    assert torch.equal(last, encode(encoder, ids, positions, segments).hidden[-1])


def test_rows_of_a_map_sum_to_one(encoder: Encoder) -> None:
    """Each token spends exactly its whole attention."""
    for probs in encode(encoder, *packed()).probs:
        assert torch.allclose(probs.sum(-1), torch.ones(1, 5, sum(LENGTHS)), atol=1e-6)


def test_other_texts_get_exactly_nothing(encoder: Encoder) -> None:
    """Not a small number: 0."""
    ids, positions, segments = packed()
    others = segments[:, None, :, None] != segments[:, None, None, :]
    for probs in encode(encoder, ids, positions, segments).probs:
        assert float(probs.masked_select(others).abs().max()) == 0.0


def test_a_packed_text_is_the_text_alone(encoder: Encoder) -> None:
    """Every layer and every map, to 1e-5."""
    ids, positions, segments = packed()
    together, start = encode(encoder, ids, positions, segments), 0
    for length in LENGTHS:
        part = slice(start, start := start + length)
        alone = encode(encoder, ids[:, part], positions[:, part], torch.ones(1, length))
        for mine, other in zip(together.hidden, alone.hidden, strict=True):
            assert torch.allclose(mine[:, part], other, atol=1e-5, rtol=0)
        for mine, other in zip(together.probs, alone.probs, strict=True):
            assert torch.allclose(mine[:, :, part, part], other, atol=1e-5, rtol=0)


def test_the_words_of_a_neighbour_change_nothing(encoder: Encoder) -> None:
    """Bit for bit: what else is in the row cannot be seen."""
    ids, positions, segments = packed()
    other = torch.where(segments == 1, ids, (ids + 9) % CONFIG.vocab_size)
    before = encode(encoder, ids, positions, segments).hidden[-1][:, :7]
    after = encode(encoder, other, positions, segments).hidden[-1][:, :7]
    assert torch.equal(before, after)


def test_segments_need_not_lie_together(encoder: Encoder) -> None:
    """Segment numbers, not places in the row, say who sees whom."""
    ids, positions, segments = packed()
    order = torch.randperm(sum(LENGTHS), generator=torch.Generator().manual_seed(7))
    mixed = encode(encoder, ids[:, order], positions[:, order], segments[:, order]).hidden[-1]
    assert torch.allclose(mixed, encode(encoder, ids, positions, segments).hidden[-1][:, order], atol=1e-5)


def test_without_positions_order_is_nothing(encoder: Encoder) -> None:
    """With a zero position table, permuted tokens give the same vectors and maps, permuted."""
    torch.nn.init.zeros_(encoder.embeddings.positions.weight)
    ids, positions, one = random_ids(1, 13), torch.arange(13)[None], torch.ones(1, 13)
    order = torch.randperm(13, generator=torch.Generator().manual_seed(7))
    plain, permuted = encode(encoder, ids, positions, one), encode(encoder, ids[:, order], positions, one)
    for mine, other in zip(permuted.hidden, plain.hidden, strict=True):
        assert torch.allclose(mine, other[:, order], atol=1e-5)
    for mine, other in zip(permuted.probs, plain.probs, strict=True):
        assert torch.allclose(mine, other[:, :, order][..., order], atol=1e-5)


def test_with_positions_order_matters(encoder: Encoder) -> None:
    """The same tokens in another order are another text."""
    ids, positions, one = random_ids(1, 13), torch.arange(13)[None], torch.ones(1, 13)
    order = torch.randperm(13, generator=torch.Generator().manual_seed(7))
    plain = encode(encoder, ids, positions, one).hidden[-1]
    permuted = encode(encoder, ids[:, order], positions, one).hidden[-1]
    assert float((permuted - plain[:, order]).abs().max()) > 0.1


@pytest.mark.parametrize("segments", [[1] * 9, [0] * 9, [1] * 5 + [0] * 4, [1, 2, 3, 4, 5, 6, 7, 8, 9]])
def test_no_row_is_ever_nan(encoder: Encoder, segments: list[int]) -> None:
    """One text, padding alone (segment 0), padding at the end, or every token alone."""
    encoded = encode(encoder, random_ids(1, 9), torch.arange(9)[None], torch.tensor([segments]))
    assert all(bool(tensor.isfinite().all()) for tensor in encoded.hidden + encoded.probs)


def test_no_row_is_nan_under_huge_scores(encoder: Encoder) -> None:
    """Scores of the size of 1e30 beside the mask's lowest float stay finite, and the mask still holds."""
    torch.nn.init.constant_(encoder.blocks[0].attention.query.bias, 1e30)  # type: ignore[union-attr, arg-type]
    ids, positions, segments = packed()
    encoded = encode(encoder, ids, positions, segments)
    others = segments[:, None, :, None] != segments[:, None, None, :]
    assert bool(encoded.hidden[-1].isfinite().all())
    assert float(encoded.probs[0].masked_select(others).max()) == 0.0


def test_the_mask_is_nought_within_a_segment() -> None:
    """And the lowest finite float elsewhere, for every head alike."""
    lowest = torch.finfo(torch.float32).min
    mask = block_diagonal_mask(torch.tensor([[1, 1, 2]]))
    assert mask.tolist() == [[[[0.0, 0.0, lowest], [0.0, 0.0, lowest], [lowest, lowest, 0.0]]]]


def test_a_narrower_table_is_projected() -> None:
    """As ELECTRA has it: the table is `(V, E)`, the embeddings `(T, D)`."""
    narrow = Encoder(replace(CONFIG, embedding_width=7)).eval()
    encoded = encode(narrow, random_ids(1, 9), torch.arange(9)[None], torch.ones(1, 9))
    assert tuple(narrow.embeddings.tokens.weight.shape) == (53, 7)
    assert tuple(encoded.hidden[0].shape) == (1, 9, 15)


def test_the_table_is_as_wide_as_the_model_unless_told() -> None:
    """No embedding_width means no projection."""
    assert CONFIG.embedding_width == 15
    assert not list(Encoder(CONFIG).embeddings.project.parameters())


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"heads": 4}, "width 15 .* heads 4"), ({"heads": 0}, "heads"), ({"activation": "mish"}, "activation 'mish'")],
)
def test_an_impossible_config_is_refused(changes: dict[str, int | str], message: str) -> None:
    """The message names the number."""
    with pytest.raises(ValueError, match=message):
        replace(CONFIG, **changes)  # type: ignore[arg-type]


def test_gelu_new_is_the_tanh_formula() -> None:
    """Hendrycks & Gimpel 2016: 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))."""
    x = torch.linspace(-5, 5, 101)
    expected = 0.5 * x * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3)))
    assert torch.allclose(ACTIVATIONS["gelu_new"](x), expected, atol=1e-6)
