"""Packed batches: sequences end to end, in a length from the list of buckets."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.packing import LengthBuckets, pack_batch
from service.engine.backends.onnxruntime_cpu import OnnxRuntimeCpuBackend
from service.engine.backends.openvino import OpenVinoBackend

TEXTS = st.lists(st.lists(st.integers(1, 999), min_size=1, max_size=40), min_size=1, max_size=12)
SHORT = (OpenVinoBackend.bucket_lengths, OnnxRuntimeCpuBackend.bucket_lengths)


@pytest.mark.parametrize("short", SHORT, ids=["openvino", "onnxruntime"])
@pytest.mark.parametrize("max_batch_tokens", [1, 128, 256, 1000])
@pytest.mark.parametrize("max_input_tokens", [16, 100, 256, 512, 8192])
def test_buckets_hold_every_input_and_every_batch(
    max_input_tokens: int, max_batch_tokens: int, short: tuple[int, ...]
) -> None:
    buckets = LengthBuckets.up_to(max_input_tokens, max_batch_tokens, short)
    assert list(buckets.lengths) == sorted(set(buckets.lengths))
    assert buckets.lengths[-1] == max(max_input_tokens, max_batch_tokens)
    for shorter, length in zip((0, *buckets.lengths), buckets.lengths, strict=False):
        assert [buckets.fit(tokens) for tokens in (shorter + 1, length)] == [length, length]


def test_default_buckets_are_few() -> None:
    """Each compiles on each stream before the server is ready."""
    lengths = LengthBuckets.up_to(512, 256, OpenVinoBackend.bucket_lengths).lengths
    assert len(lengths) == 18
    assert lengths[-3:] == (256, 384, 512)


@given(TEXTS, st.integers(0, 50))
def test_sequences_lie_end_to_end(texts: list[list[int]], padding: int) -> None:
    length = sum(map(len, texts)) + padding
    batch = pack_batch([(text, None) for text in texts], length)
    ids, positions, types, sequence_ids = (
        batch.inputs[name][0] for name in ("input_ids", "position_ids", "token_type_ids", "sequence_ids")
    )
    assert (batch.length, batch.tokens, batch.sizes) == (length, length - padding, [len(text) for text in texts])
    for number, (start, text) in enumerate(zip(batch.starts, texts, strict=True), start=1):
        here = slice(start, start + len(text))
        assert ids[here].tolist() == text
        assert positions[here].tolist() == list(range(len(text)))
        assert np.flatnonzero(sequence_ids == number).tolist() == list(range(start, start + len(text)))
    assert not sequence_ids[batch.tokens :].any()
    assert not types.any()


def test_token_type_ids_of_a_pair_are_kept() -> None:
    batch = pack_batch([([5], None), ([6, 7], [0, 1])], 4)
    assert batch.inputs["token_type_ids"].tolist() == [[0, 0, 1, 0]]


def test_positions_of_a_very_long_sequence_ascend() -> None:
    batch = pack_batch([([1] * 8192, None)], 8192)
    assert batch.inputs["position_ids"][0].tolist() == list(range(8192))
