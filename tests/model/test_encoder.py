"""Encoder invariants: masking, packing, positions and numerical limits."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from model.encoder import DisentangledConfig, Encoder, EncoderConfig
from model.export.layers import LayerSteps
from tests import random_encoders
from tests.random_encoders import EncoderOutput

CONFIG = EncoderConfig(
    vocab_size=53,
    hidden_size=15,
    num_hidden_layers=3,
    num_attention_heads=5,
    intermediate_size=29,
    max_position_embeddings=31,
    type_vocab_size=2,
    norm_eps=1e-12,
)
LENGTHS = (7, 1, 11, 4)


@pytest.fixture(params=[False, True], ids=["bidirectional", "causal"])
def encoder(request: pytest.FixtureRequest) -> Encoder:
    """Return an encoder whose random weights are large enough for uneven attention."""
    return random_encoder(causal=request.param)


def random_encoder(causal: bool) -> Encoder:
    torch.manual_seed(11)
    encoder = Encoder(replace(CONFIG, causal=causal)).eval()
    with torch.no_grad():
        for name, parameter in encoder.named_parameters():
            parameter.normal_(1.0 if name.endswith("norm.weight") else 0.0, 0.5)
    return encoder


def random_ids(*shape: int) -> Tensor:
    return torch.randint(0, CONFIG.vocab_size, shape, generator=torch.Generator().manual_seed(3))


def encode(encoder: Encoder, ids: Tensor, positions: Tensor, sequence_ids: Tensor) -> EncoderOutput:
    return random_encoders.encode(encoder, ids, positions, ids % CONFIG.type_vocab_size, sequence_ids)


def packed_inputs() -> tuple[Tensor, Tensor, Tensor]:
    """Return the ids, positions and sequence ids of four sequences in one row, (1, 23) each."""
    positions = torch.cat([torch.arange(length) for length in LENGTHS])[None]
    sequence_ids = torch.repeat_interleave(torch.arange(1, 5), torch.tensor(LENGTHS))[None]
    return random_ids(1, sum(LENGTHS)), positions, sequence_ids


def test_attention_to_other_sequences_is_exactly_zero(encoder: Encoder) -> None:
    ids, positions, sequence_ids = packed_inputs()
    others = sequence_ids[:, None, :, None] != sequence_ids[:, None, None, :]
    for probs in encode(encoder, ids, positions, sequence_ids).probs:
        assert float(probs.masked_select(others).abs().max()) == 0.0
        assert torch.allclose(probs.sum(dim=-1), torch.ones(()))


def test_packed_sequence_equals_sequence_alone(encoder: Encoder) -> None:
    ids, positions, sequence_ids = packed_inputs()
    together, start = encode(encoder, ids, positions, sequence_ids), 0
    for length in LENGTHS:
        part = slice(start, start := start + length)
        alone = encode(encoder, ids[:, part], positions[:, part], torch.ones(1, length))
        for a, b in zip(together.hidden_states, alone.hidden_states, strict=True):
            assert torch.allclose(a[:, part], b, atol=1e-5, rtol=0)
        for a, b in zip(together.probs, alone.probs, strict=True):
            assert torch.allclose(a[:, :, part, part], b, atol=1e-5, rtol=0)


def test_output_is_bitwise_independent_of_other_sequences(encoder: Encoder) -> None:
    ids, positions, sequence_ids = packed_inputs()
    other = torch.where(sequence_ids == 1, ids, (ids + 9) % CONFIG.vocab_size)
    before = encode(encoder, ids, positions, sequence_ids).hidden_states[-1][:, :7]
    after = encode(encoder, other, positions, sequence_ids).hidden_states[-1][:, :7]
    assert torch.equal(before, after)


def test_sequences_may_be_interleaved(encoder: Encoder) -> None:
    ids, positions, sequence_ids = packed_inputs()
    order = torch.randperm(sum(LENGTHS), generator=torch.Generator().manual_seed(7))
    shuffled = encode(encoder, ids[:, order], positions[:, order], sequence_ids[:, order]).hidden_states[-1]
    assert torch.allclose(
        shuffled, encode(encoder, ids, positions, sequence_ids).hidden_states[-1][:, order], atol=1e-5
    )


def test_encoder_is_permutation_equivariant_without_position_embeddings() -> None:
    encoder = random_encoder(causal=False)
    assert encoder.embeddings.position_embeddings is not None
    torch.nn.init.zeros_(encoder.embeddings.position_embeddings.weight)
    ids, positions, single = random_ids(1, 13), torch.arange(13)[None], torch.ones(1, 13)
    order = torch.randperm(13, generator=torch.Generator().manual_seed(7))
    plain, permuted = encode(encoder, ids, positions, single), encode(encoder, ids[:, order], positions, single)
    for a, b in zip(permuted.hidden_states, plain.hidden_states, strict=True):
        assert torch.allclose(a, b[:, order], atol=1e-5)
    for a, b in zip(permuted.probs, plain.probs, strict=True):
        assert torch.allclose(a, b[:, :, order][..., order], atol=1e-5)


@pytest.mark.parametrize("sequence_ids", [[1] * 9, [0] * 9, [1] * 5 + [0] * 4, [1, 2, 3, 4, 5, 6, 7, 8, 9]])
def test_output_is_finite_with_padding(encoder: Encoder, sequence_ids: list[int]) -> None:
    """Covers a single sequence, padding only (id 0), padding at the end, and single-token sequences."""
    encoded = encode(encoder, random_ids(1, 9), torch.arange(9)[None], torch.tensor([sequence_ids]))
    assert all(bool(tensor.isfinite().all()) for tensor in encoded.hidden_states + encoded.probs)


def test_output_is_finite_and_masked_with_scores_near_float32_limit(encoder: Encoder) -> None:
    """Scores are about 1e30."""
    torch.nn.init.constant_(encoder.blocks[0].attention.query.bias, 1e30)  # type: ignore[union-attr, arg-type]
    ids, positions, sequence_ids = packed_inputs()
    encoded = encode(encoder, ids, positions, sequence_ids)
    others = sequence_ids[:, None, :, None] != sequence_ids[:, None, None, :]
    assert bool(encoded.hidden_states[-1].isfinite().all())
    assert float(encoded.probs[0].masked_select(others).max()) == 0.0


def test_attention_of_causal_encoder_to_later_tokens_is_exactly_zero() -> None:
    for probs in encode(random_encoder(causal=True), *packed_inputs()).probs:
        assert float(probs.triu(1).abs().max()) == 0.0
        assert torch.allclose(probs[0, :, 0, 0], torch.ones(5))


def test_output_of_causal_encoder_is_bitwise_independent_of_later_tokens() -> None:
    ids, positions, single = random_ids(1, 13), torch.arange(13)[None], torch.ones(1, 13)
    later = torch.where(positions >= 6, (ids + 9) % CONFIG.vocab_size, ids)
    for causal in (True, False):
        encoder = random_encoder(causal)
        before, after = (encode(encoder, input_ids, positions, single).hidden_states[-1] for input_ids in (ids, later))
        assert torch.equal(before[:, :6], after[:, :6]) == causal
        assert not torch.equal(before[:, 6:], after[:, 6:])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_attention_heads": 4}, r"hidden_size: not a multiple"),
        ({"num_attention_heads": 0}, "num_attention_heads"),
        ({"hidden_act": "mish"}, "hidden_act: unsupported value 'mish'"),
    ],
)
def test_config_rejects_invalid_value(changes: dict[str, int | str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(CONFIG, head_size=0, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("terms", [(), ("content_to_position",), ("content_to_position", "position_to_content")])
def test_steps_have_the_terms_of_disentangled_attention(terms: tuple[str, ...]) -> None:
    options = DisentangledConfig(6, 20, "content_to_position" in terms, "position_to_content" in terms)
    steps = LayerSteps(Encoder(replace(CONFIG, disentangled=options)).eval(), 0)
    tokens = torch.arange(4)
    outputs = steps(torch.zeros(1, 4, 15), tokens[None], tokens, *steps.weights().values())
    assert len(outputs) == len(steps.outputs)
    assert steps.outputs[11:] == (("bias", *terms) if terms else ())
