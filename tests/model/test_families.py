"""Checkpoints of every model family, as transformers writes them and as published, compared with transformers."""

import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor

from model.checkpoint import load_checkpoint
from model.encoder import Encoder
from model.encoder.attention import MAX_DENSE_TOKENS
from model.export.parity import GRID, measure_parity
from model.source.published import CheckpointError
from model.source.sentence_transformers import SettingOptions
from tests.model.conftest import Publish, mark_slow
from tests.model.family_cases import FAMILY_CASES, load_oracle
from tests.model.model_files import change_json, changed_keys, read_json
from tests.model.published_families import LORA_RANK, SCALED_FROM, TASKS
from tests.model.varlen_inputs import FIRST_ORDINARY_ID
from tests.random_encoders import EncoderOutput, encode

LENGTHS = (1, 17, 118)
"""Beyond each window, and beyond the 91 positions where relative biases saturate."""
SCALED = ("nomic_bert, dynamic", "nomic_bert, published")
WEAK = "a weak oracle (almost uniform attention): see the step about FAMILY_CASES in CONTRIBUTING.md"
LONG_ROWS = (
    *SCALED,
    "modernbert, published",
    "jina_embeddings_v3, published",
    "qwen3, windows",
    "gemma3_text, causal",
    "mistral",
    "qwen2",
    "jina_bert",
    "jina_bert_code",
)
"""Models whose inputs are so long that attention is computed in blocks."""
BERT_KINDS = (
    "bert",
    "bert/BertForPreTraining",
    "bert/BertForSequenceClassification",
    "roberta",
    "roberta/RobertaForMaskedLM",
    "xlm-roberta",
    "xlm-roberta/XLMRobertaForSequenceClassification",
    "camembert",
    "camembert/CamembertForMaskedLM",
    "distilbert",
    "distilbert/DistilBertForMaskedLM",
    "electra",
    "electra/ElectraForPreTraining",
    "electra/ElectraForMaskedLM",
    "causal-bert",
    "causal-bert/BertLMHeadModel",
    "causal-roberta",
    "causal-xlm-roberta",
    "causal-camembert",
    "causal-distilbert",
    "causal-electra",
)


UNRENAMED = (*(kind for kind, case in FAMILY_CASES.items() if case.rename is None), *BERT_KINDS)
"""Models whose config.json transformers can read, too."""
Batch = tuple[Tensor, Tensor, Tensor]


def random_batch(encoder: Encoder, *lengths: int) -> Batch:
    """Return padded input ids, token type ids and attention mask, (N, T) each; the padding id is 1."""
    generator = torch.Generator().manual_seed(sum(lengths))
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    input_ids = torch.randint(FIRST_ORDINARY_ID, encoder.config.vocab_size, mask.shape, generator=generator)
    types = torch.randint(0, max(1, encoder.config.type_vocab_size), mask.shape, generator=generator)
    return torch.where(mask, input_ids, 1), types, mask.long()


def run_encoder(encoder: Encoder, batch: Batch) -> EncoderOutput:
    input_ids, token_type_ids, attention_mask = batch
    positions = torch.arange(input_ids.shape[1]).expand_as(input_ids)
    return encode(encoder, input_ids, positions, token_type_ids, attention_mask)


def run_transformers(encoder: Encoder, directory: Path, batch: Batch) -> Any:
    """Load the model anew for each batch: dynamic scaling in transformers depends on earlier inputs."""
    model = load_oracle(directory)
    input_ids, token_type_ids, mask = batch
    types = {"token_type_ids": token_type_ids} if encoder.config.type_vocab_size > 1 else {}
    with torch.inference_mode():
        return model(input_ids, attention_mask=mask, **types, output_hidden_states=True, output_attentions=True)


def assert_equal_to_transformers(directory: Path, *, length: int = 13, scaled: bool = False) -> EncoderOutput:
    """Compare the last hidden state of a random input, relative to the largest value if `scaled`; return the output."""
    encoder = load_checkpoint(directory).encoder
    batch = random_batch(encoder, length)
    output, expected = run_encoder(encoder, batch), run_transformers(encoder, directory, batch).last_hidden_state
    scale = max(1.0, float(expected.abs().max())) if scaled else 1.0
    assert float((output.hidden_states[-1] - expected).abs().max()) < 1e-5 * scale
    return output


@pytest.mark.parametrize(
    ("kind", "lengths"),
    [
        *((kind, (length,)) for kind in FAMILY_CASES for length in LENGTHS),
        *((kind, (SCALED_FROM + 91,)) for kind in SCALED),
        *((kind, (MAX_DENSE_TOKENS + 91,)) for kind in LONG_ROWS),
        *((kind, lengths) for kind in BERT_KINDS for lengths in ((1,), (23,), (2, 29, 11))),
    ],
)
def test_hidden_states_and_probs_equal_transformers(publish: Publish, kind: str, lengths: tuple[int, ...]) -> None:
    encoder = load_checkpoint(publish(kind)).encoder
    batch = random_batch(encoder, *lengths)
    output, oracle = run_encoder(encoder, batch), run_transformers(encoder, publish(kind), batch)
    layers = 4 if kind in FAMILY_CASES else 2
    assert len(output.hidden_states) == len(oracle.hidden_states) == layers + 1
    assert len(output.probs) == (0 if max(lengths) > MAX_DENSE_TOKENS else layers)
    for index, length in enumerate(lengths):
        for hidden, expected in zip(output.hidden_states, oracle.hidden_states, strict=True):
            scale = max(1.0, float(expected.abs().max())) if kind in FAMILY_CASES else 1.0
            assert float((hidden - expected)[index, :length].abs().max()) < 1e-5 * scale
        for probs, attention in zip(output.probs, oracle.attentions, strict=False):
            expected = attention[index, :, :length, :length]
            assert float((probs[index, :, :length, :length] - expected).abs().max()) < 1e-5
            if length > 1 and kind in FAMILY_CASES:
                assert float(expected.max(dim=-1).values.mean()) > 2 / length, WEAK


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        *(("bert", {"hidden_act": name}) for name in ("gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "silu")),
        ("bert", {"layer_norm_eps": 0.5}),  # large enough to change every value
        *(("t5", {"dense_act_fn": name}) for name in ("relu", None)),
        ("mt5", {"feed_forward_proj": "relu"}),
    ],
)
def test_changed_config_equals_transformers(
    publish: Publish, tmp_path: Path, kind: str, changes: dict[str, Any]
) -> None:
    directory = shutil.copytree(publish(kind), tmp_path / "model")
    change_json(directory / "config.json", **changes)
    assert_equal_to_transformers(directory, scaled=True)


@given(data=st.data())
def test_changed_key_is_applied_or_rejected(publish: Publish, data: st.DataObject) -> None:
    """Also for keys that only transformers writes. If transformers rejects a value, the result does not matter."""
    kind = data.draw(st.sampled_from(UNRENAMED))
    config = read_json(publish(kind) / "config.json")
    changes = data.draw(changed_keys(config))
    with tempfile.TemporaryDirectory() as root:
        directory = Path(root) / "model"
        shutil.copytree(publish(kind), directory)
        change_json(directory / "config.json", **changes)
        try:
            encoder = load_checkpoint(directory).encoder
        except CheckpointError:
            return
        batch = random_batch(encoder, 37)
        try:
            expected = run_transformers(encoder, directory, batch).last_hidden_state
        except Exception:  # noqa: BLE001  # transformers raises exceptions of many types
            return
        output = run_encoder(encoder, batch).hidden_states[-1]
    assert float((output - expected).abs().max()) < 1e-4 * max(1.0, float(expected.abs().max()))


def test_roberta_positions_start_after_padding_id(publish: Publish, tmp_path: Path) -> None:
    model = transformers.AutoModel.from_pretrained(publish("roberta"), pad_token_id=0)
    model.save_pretrained(tmp_path)
    shutil.copy(publish("roberta") / "tokenizer.json", tmp_path)
    assert_equal_to_transformers(tmp_path)


PACKED = (
    "modernbert", *(kind for kind in FAMILY_CASES if "," in kind), *(kind for kind in BERT_KINDS if "/" not in kind),
)  # fmt: skip
"""Without the architectures that tests/e2e/test_family_backends.py exports: an export makes the same comparison."""


@pytest.mark.parametrize("kind", mark_slow(*PACKED, fast=("modernbert",)))
def test_graph_with_packed_sequences_equals_sequences_alone(publish: Publish, graphs: Publish, kind: str) -> None:
    checkpoint = load_checkpoint(publish(kind))
    parity = measure_parity(checkpoint.encoder, graphs(kind), checkpoint.max_input_tokens)
    assert parity.batches == sum(max(lengths) <= checkpoint.max_input_tokens for lengths in GRID) + 1
    assert parity.max_abs_difference <= (parity.tolerance if kind in FAMILY_CASES else 1e-5)


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        ("modernbert", {"attn_logit_softcapping": 30.0}, "unknown key attn_logit_softcapping"),
        ("modernbert", {"layer_types": ["full_attention", "linear_attention"] * 2}, "layer_types of 4 layers"),
        (
            "nomic_bert",
            {"rope_parameters": {"rope_type": "yarn", "factor": 2.0}},
            r"^config\.json: rope_parameters\.rope_type: unsupported \('yarn'\)\. Supported: ",
        ),
        (
            "modernbert",
            {"rope_parameters": {"full_attention": {"type": "yarn"}}},
            r"^config\.json: rope_parameters\.full_attention\.type: unsupported \('yarn'\)\. Supported: ",
        ),
        (
            "gemma3_text",
            {"rope_scaling": {"rope_type": "longrope"}},
            r"^config\.json: rope_scaling\.rope_type: unsupported \('longrope'\)\. Supported: ",
        ),
        (
            "llama",
            {"rope_parameters": {"rope_theta": 0.0}},
            r"rope_parameters\.rope_theta is not a positive number \(0",
        ),
        ("gte", {"rope_parameters": {"rope_type": "linear"}}, r"rope_parameters\.factor is missing"),
        (
            "gemma3_text",
            {"rope_parameters": {"full_attention": []}},
            r"rope_parameters\.full_attention is not an object",
        ),
        ("qwen3", {"rope_scaling": "linear"}, "rope_scaling is not an object"),
        ("qwen3", {"num_key_value_heads": 4}, "num_attention_heads: not a multiple of num_key_value_heads"),
        (
            "qwen3",
            {"rope_parameters": {"partial_rotary_factor": 0.5}},
            r"^config\.json: rope_parameters\.partial_rotary_factor: unsupported \(0\.5\)\. Supported: 1\.0\.",
        ),
        ("nomic_bert, published", {"num_experts": 8}, "num_experts: expert layers are not supported"),
        ("nomic_bert, published", {"rotary_emb_fraction": 0.5}, "unsupported rotary_emb_fraction 0.5"),
        ("new", {"logn_attention_scale": True}, "unsupported logn_attention_scale True"),
        ("new", {"position_embedding_type": "absolute"}, "unsupported position_embedding_type 'absolute'"),
        ("mpnet", {"relative_attention_num_buckets": 16}, "unsupported relative_attention_num_buckets 16"),
        ("t5", {"relative_attention_max_distance": 5}, "relative_attention_max_distance: not over a quarter"),
        (
            "t5",
            {"feed_forward_proj": "gated-swiglu", "dense_act_fn": None},
            r"feed_forward_proj: unsupported \('swiglu'\)",
        ),
        ("t5", {"dense_act_fn": "swiglu"}, r"dense_act_fn: unsupported \('swiglu'\)"),
        ("t5", {"is_decoder": True}, "unsupported is_decoder True"),
        ("qwen2", {"use_mrope": True}, "use_mrope"),
        ("deberta-v2", {"conv_kernel_size": 3}, "conv_kernel_size: convolutions are not supported"),
        ("deberta-v2", {"pos_att_type": "p2p"}, r"pos_att_type: unsupported \(\['p2p'\]\)"),
        ("deberta-v2", {"position_buckets": 300}, "position_buckets: too many for max_relative_positions"),
        ("deberta-v2", {"embedding_size": 12}, "unsupported embedding_size 12"),
        ("qwen3", {"use_bidirectional_attention": True}, "unknown key use_bidirectional_attention"),
        (
            "qwen3",
            {"rope_scaling": {"rope_type": "linear", "beta": 2}},
            r"^config\.json: rope_scaling\.beta: unsupported \(2\)\. Use a model without it\.",
        ),
        ("modernbert", {"rope_scaling": {"rope_type": "linear", "factor": 2.0}}, "unknown key rope_scaling"),
        ("gemma3_text", {"attn_logit_softcapping": 50.0}, "unknown key attn_logit_softcapping"),
        ("eurobert", {"is_causal": True}, "unsupported is_causal True"),
        ("gemma3_text", {"is_causal": False}, "unsupported is_causal false"),
        ("gemma3_text, causal", {"is_causal": False}, "unsupported is_causal false"),
        ("modernbert", {"transformers_weights": "other.safetensors"}, "unsupported transformers_weights"),
        ("jina_embeddings_v3", {"position_embedding_type": "alibi"}, "unsupported position_embedding_type 'alibi'"),
    ],
)
def test_unsupported_config_is_rejected(
    publish: Publish, tmp_path: Path, kind: str, changes: dict[str, Any], message: str
) -> None:
    directory = shutil.copytree(publish(kind), tmp_path / "model")
    change_json(directory / "config.json", **changes)
    with pytest.raises(CheckpointError, match=message):
        load_checkpoint(directory)


def test_mistral_with_layer_types_is_ministral(publish: Publish, tmp_path: Path) -> None:
    directory = shutil.copytree(publish("mistral"), tmp_path / "model")
    layers = read_json(directory / "config.json")["num_hidden_layers"]
    change_json(directory / "config.json", layer_types=["full_attention", *["sliding_attention"] * (layers - 1)])
    assert_equal_to_transformers(directory, length=17)


@pytest.mark.parametrize("kind", ["nomic_bert", "gte", "jina_embeddings_v3", "eurobert", "qwen3", "gemma3_text"])
@pytest.mark.parametrize("others", [{}, {"rope_theta": 31.0}])
def test_rope_scaling_takes_precedence_over_rope_parameters_like_in_transformers(
    publish: Publish, tmp_path: Path, kind: str, others: dict[str, Any]
) -> None:
    directory = shutil.copytree(publish(kind), tmp_path / "model")
    assert read_json(directory / "config.json")["rope_parameters"]
    plain = assert_equal_to_transformers(directory, length=17, scaled=True).hidden_states[-1]
    change_json(directory / "config.json", rope_scaling={"rope_type": "linear", "factor": 3.0}, **others)
    hidden = assert_equal_to_transformers(directory, length=17, scaled=True).hidden_states[-1]
    assert float((hidden - plain).abs().max()) > 1e-2


@pytest.mark.parametrize(
    ("kind", "key", "default"),
    [
        ("new", "rope_theta", 10_000.0),
        ("new", "max_position_embeddings", 2048),
        ("gte", "max_position_embeddings", 8192),
        ("nomic_bert, published", "rotary_emb_base", 10_000.0),
        ("jina_embeddings_v3, published", "rotary_emb_base", 10_000.0),
    ],
)
def test_missing_key_has_the_default_of_the_code(
    publish: Publish, tmp_path: Path, kind: str, key: str, default: float
) -> None:
    """Published code may have another default than transformers."""
    directory = shutil.copytree(publish(kind), tmp_path / "model")
    configs = []
    for value in (None, default):
        change_json(directory / "config.json", **{key: value})
        configs.append(load_checkpoint(directory).encoder.config)
    assert configs[0] == configs[1]


@pytest.mark.parametrize("kind", FAMILY_CASES)
def test_unknown_and_missing_tensors_are_rejected(publish: Publish, tmp_path: Path, kind: str) -> None:
    directory = shutil.copytree(publish(kind), tmp_path / "model")
    tensors = load_file(directory / "model.safetensors")
    name = next(name for name in sorted(tensors) if "layer" in name)
    save_file(tensors | {name.replace(".1.", ".2.") + ".expert": torch.ones(2)}, directory / "model.safetensors")
    with pytest.raises(CheckpointError, match="unknown tensor"):
        load_checkpoint(directory)
    save_file({key: tensor for key, tensor in tensors.items() if key != name}, directory / "model.safetensors")
    with pytest.raises(CheckpointError, match="is missing"):
        load_checkpoint(directory)


ADAPTED = {
    "roberta.embeddings.word_embeddings": ["embeddings.word_embeddings"],
    "roberta.encoder.layers.2.mlp.fc1": ["layers.2.mlp.fc1"],
    "roberta.encoder.layers.1.mixer.Wqkv": [f"layers.1.self_attn.{part}_proj" for part in "qkv"],
}


@pytest.mark.parametrize("task", [None, *TASKS])
def test_adapters_of_a_task_are_merged(publish: Publish, tmp_path: Path, task: str | None) -> None:
    """The oracle is transformers with weights that NumPy merges; other modules have adapters of zeros."""
    directory = publish("jina_embeddings_v3, published")
    plain = shutil.copytree(directory / "oracle", tmp_path / "plain")
    stored, tensors = load_file(directory / "model.safetensors"), load_file(plain / "model.safetensors")
    for key in stored:
        if "lora_B" in key and not key.startswith(tuple(ADAPTED)):
            stored[key].zero_()
    for module, names in ADAPTED.items() if task is not None else ():
        a, b = (stored[f"{module}.parametrizations.weight.0.lora_{part}"][TASKS.index(task)].numpy() for part in "AB")
        change = torch.from_numpy((a @ b if "embeddings" in module else b @ a) / LORA_RANK)
        for name, rows in zip(names, change.chunk(len(names)), strict=True):
            tensors[f"{name}.weight"] += rows
    adapted = shutil.copytree(directory, tmp_path / "adapted")
    save_file(stored, adapted / "model.safetensors")
    save_file(tensors, plain / "model.safetensors")
    encoder = load_checkpoint(adapted, SettingOptions(task=task)).encoder
    batch = random_batch(encoder, 23)
    difference = run_encoder(encoder, batch).hidden_states[-1] - run_transformers(encoder, plain, batch)[0]
    assert float(difference.abs().max()) < 1e-5


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("jina_embeddings_v3, published", r"unknown task \(clustering\)\. Use retrieval.query, retrieval.passage"),
        ("bert", "This model has no adapters: leave it out"),
    ],
)
def test_unknown_task_is_rejected(publish: Publish, kind: str, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        load_checkpoint(publish(kind), SettingOptions(task="clustering"))
