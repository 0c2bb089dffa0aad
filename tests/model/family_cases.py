"""One tiny model per architecture, with random weights and every config key away from its default.

Unless a case says otherwise, weights have a standard deviation of 0.3, so that attention is far from uniform. Config
keys and tensors have the names that transformers writes. In "published" cases, they have the names of the checkpoints
on the Hugging Face Hub.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import tokenizers
import torch
import transformers
from safetensors.torch import load_file, save_file

from tests.model.model_files import read_json, write_chain, write_json
from tests.model.published_families import (
    SCALED_FROM,
    Rename,
    add_jina_code,
    alibi_mask,
    publish_gte,
    publish_jina,
    publish_jina_bert,
    publish_jina_code,
    publish_modernbert,
    publish_nomic,
)

HIDDEN_SIZE = 24
SIZES = {"hidden_size": HIDDEN_SIZE, "num_hidden_layers": 4, "num_attention_heads": 3, "intermediate_size": 37}
GROUPED = SIZES | {"num_attention_heads": 6, "num_key_value_heads": 2}
LONG = 1300
"""More positions than fit in a row with a T x T mask."""


def rope(theta: float, **options: Any) -> dict[str, Any]:
    return {"rope_type": "default", "rope_theta": theta, **options}


@dataclass(frozen=True)
class FamilyCase:
    """A model of transformers, its tokenizer, and how the files of published checkpoints differ from its own."""

    architecture: str
    config: str
    options: Mapping[str, Any] = field(default_factory=dict)
    tokenizer: str = "wordpiece"
    rename: Rename | None = None
    pooling: str | None = None
    deviation: float = 0.3
    native_names: bool = True

    def publish(self, directory: Path, tokenizer: bytes) -> None:
        """Write config.json, weights and tokenizer. `directory/oracle` contains what transformers loads."""
        vocab_size = tokenizers.Tokenizer.from_str(tokenizer.decode()).get_vocab_size()
        config = getattr(transformers, self.config)(vocab_size=vocab_size, **self.options)
        model = getattr(transformers, self.architecture)(config).eval()
        generator = torch.Generator().manual_seed(17)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                is_norm = name.endswith("weight") and parameter.dim() == 1 and "norm" in name.lower()
                center = 1.0 if is_norm and "Gemma" not in self.architecture else 0.0
                parameter.copy_(center + self.deviation * torch.randn(parameter.shape, generator=generator))
        if self.native_names:
            save_native(model, directory)
        else:
            model.save_pretrained(directory)
        if self.rename is not None:
            save_native(model, directory / "oracle")
            config_values = read_json(directory / "config.json")
            values, tensors = self.rename(config_values, load_file(directory / "model.safetensors"))
            values |= {key: config_values[key] for key in ("architectures", "id2label") if key in config_values}
            write_json(directory / "config.json", values)
            save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, directory / "model.safetensors")
        (directory / "tokenizer.json").write_bytes(tokenizer)
        if self.pooling is not None:
            write_chain(directory, {"": "models.Transformer", "1_Pooling": "models.Pooling"})
            write_json(directory / "1_Pooling" / "config.json", {"pooling_mode": self.pooling})


def save_native(model: transformers.PreTrainedModel, directory: Path) -> None:
    """Save a model in the names of transformers, which `save_pretrained` turns into those of published files."""
    model.config.architectures = [type(model).__name__]
    model.config.save_pretrained(directory)
    tensors = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    heads_first = sorted(tensors, key=lambda name: "embed" in name)
    unique = {tensors[name].data_ptr(): name for name in heads_first}  # a tied head is stored once, as embeddings
    save_file({name: tensors[name] for name in unique.values()}, directory / "model.safetensors", {"format": "pt"})


def load_oracle(directory: Path, loader: Any = None) -> Any:
    """Return the model as transformers loads it, by default the encoder.

    `AutoModel` of T5 would load a decoder, too, and transformers has no JinaBERT.
    """
    has_alibi = read_json(directory / "config.json").get("position_embedding_type") == "alibi"
    published, directory = directory, oracle_directory(directory)
    kind = read_json(directory / "config.json")["model_type"]
    loader = loader or {"t5": transformers.T5EncoderModel, "mt5": transformers.MT5EncoderModel}.get(
        kind, transformers.AutoModel
    )
    model = loader.from_pretrained(directory, attn_implementation="eager").eval()
    if has_alibi:
        tensors = load_file(published / "model.safetensors")
        if any("layer_norm_q" in name for name in tensors):
            add_jina_code(model, tensors)

        def add_biases(module: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
            input_ids = arguments[0] if arguments else options["input_ids"]
            mask = options.get("attention_mask")
            mask = torch.ones_like(input_ids) if mask is None else mask
            return arguments, {**options, "attention_mask": alibi_mask(mask, module.config.num_attention_heads)}

        model.base_model.register_forward_pre_hook(add_biases, with_kwargs=True)
    return model


def oracle_directory(directory: Path) -> Path:
    """Return the directory from which transformers loads the same weights."""
    return directory / "oracle" if (directory / "oracle").is_dir() else directory


BERT_CLASSES = {
    "bert": "Bert", "camembert": "Camembert", "distilbert": "DistilBert", "electra": "Electra", "roberta": "Roberta",
    "xlm-roberta": "XLMRoberta",
}  # fmt: skip
"""Model types of the families with BERT's parts, and the prefixes of their classes in transformers."""
WORDPIECE_FAMILIES = ("bert", "distilbert", "electra")


def bert_case(kind: str) -> FamilyCase:
    """Return a case of `BERT_CLASSES`: "family" or "family/Architecture"; the prefix "causal-" sets `is_decoder`."""
    family, _, architecture = kind.removeprefix("causal-").partition("/")
    sizes = SIZES | {"num_hidden_layers": 2, "type_vocab_size": 2 if family in ("bert", "electra") else 1}
    if family == "electra":
        sizes["embedding_size"] = 13
    if family == "distilbert":
        sizes = {"dim": HIDDEN_SIZE, "n_layers": 2, "n_heads": 3, "hidden_dim": 37}
    options = sizes | {"max_position_embeddings": 41, "is_decoder": kind.startswith("causal-")}
    tokenizer = "wordpiece" if family in WORDPIECE_FAMILIES else "bytelevel" if family == "roberta" else "metaspace"
    name = BERT_CLASSES[family]
    return FamilyCase(architecture or f"{name}Model", f"{name}Config", options, tokenizer, native_names=False)


IDS = {"pad_token_id": 1, "bos_token_id": 2, "eos_token_id": 3}
MODERNBERT = SIZES | IDS | {
    "cls_token_id": 2, "sep_token_id": 3, "max_position_embeddings": 120, "local_attention": 10, "norm_eps": 1e-3,
    "hidden_activation": "silu", "global_attn_every_n_layers": 2,
    "rope_parameters": {"full_attention": rope(500.0), "sliding_attention": rope(50.0)},
}  # fmt: skip
DEBERTA = SIZES | {
    "max_position_embeddings": 122, "layer_norm_eps": 1e-3, "hidden_act": "gelu_new", "relative_attention": True,
    "position_buckets": 16, "max_relative_positions": 60, "position_biased_input": False, "norm_rel_ebd": "layer_norm",
    "share_att_key": True, "pos_att_type": ["p2c", "c2p"], "pooler_hidden_act": "relu",
}  # fmt: skip
T5 = {"d_model": HIDDEN_SIZE, "num_layers": 4, "num_heads": 3, "d_ff": 37, "d_kv": 10, "layer_norm_epsilon": 1e-3}
GEMMA = SIZES | {
    "num_key_value_heads": 1, "head_dim": 10, "rms_norm_eps": 1e-3, "query_pre_attn_scalar": 31,
    "max_position_embeddings": 120, "layer_types": ["sliding_attention", "full_attention"] * 2,
    "hidden_activation": "silu", "pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 1,
    "rope_parameters": {
        "full_attention": rope(500.0, rope_type="linear", factor=2.0), "sliding_attention": rope(50.0),
    },
}  # fmt: skip
JINA_BERT = FamilyCase(
    "GteModel",
    "GteConfig",
    SIZES
    | {
        "type_vocab_size": 2, "layer_norm_eps": 1e-3, "hidden_act": "gelu", "max_position_embeddings": LONG,
        "rope_parameters": rope(10.0, rope_type="linear", factor=1e30),  # no rotation
    },
    rename=publish_jina_bert,
    deviation=0.2,
)  # fmt: skip
FAMILY_CASES: dict[str, FamilyCase] = {
    "mpnet": FamilyCase(
        "MPNetModel",
        "MPNetConfig",
        SIZES | {"max_position_embeddings": 122, "layer_norm_eps": 1e-3, "hidden_act": "relu"},
        "bytelevel",
    ),
    "modernbert": FamilyCase("ModernBertModel", "ModernBertConfig", MODERNBERT, "bytelevel", pooling="cls"),
    "modernbert, published": FamilyCase(
        "ModernBertModel",
        "ModernBertConfig",
        MODERNBERT | {"max_position_embeddings": LONG},
        "bytelevel",
        publish_modernbert,
    ),
    "modernbert, biases": FamilyCase(
        "ModernBertForMaskedLM",
        "ModernBertConfig",
        MODERNBERT | {"norm_bias": True, "attention_bias": True, "mlp_bias": True},
        "bytelevel",
    ),
    "t5": FamilyCase(
        "T5EncoderModel",
        "T5Config",
        T5
        | {
            "relative_attention_num_buckets": 20, "relative_attention_max_distance": 50, "feed_forward_proj": "silu",
        },
        "t5",
        deviation=0.2,
    ),
    "mt5": FamilyCase("MT5EncoderModel", "MT5Config", T5 | {"feed_forward_proj": "gated-gelu"}, "t5", deviation=0.2),
    "deberta-v2": FamilyCase("DebertaV2Model", "DebertaV2Config", DEBERTA, "metaspace"),
    "deberta-v2, separate": FamilyCase(
        "DebertaV2Model",
        "DebertaV2Config",
        DEBERTA
        | {
            "share_att_key": False, "position_biased_input": True, "pos_att_type": "c2p", "type_vocab_size": 2,
            "norm_rel_ebd": "none", "position_buckets": -1, "max_relative_positions": 40, "hidden_size": 48,
        },
        deviation=0.4,
    ),
    "nomic_bert": FamilyCase(
        "NomicBertModel",
        "NomicBertConfig",
        SIZES | {"layer_norm_eps": 1e-3, "hidden_act": "gelu", "rope_parameters": rope(200.0)},
    ),
    "nomic_bert, dynamic": FamilyCase(
        "NomicBertModel",
        "NomicBertConfig",
        SIZES
        | {"max_position_embeddings": SCALED_FROM, "rope_parameters": rope(200.0, rope_type="dynamic", factor=3.0)},
    ),
    "nomic_bert, published": FamilyCase(
        "NomicBertModel",
        "NomicBertConfig",
        SIZES
        | {
            "layer_norm_eps": 1e-3,
            "max_position_embeddings": SCALED_FROM,
            "rope_parameters": rope(200.0, rope_type="dynamic", factor=3.0),
        },
        rename=publish_nomic,
    ),
    "gte": FamilyCase(
        "GteModel",
        "GteConfig",
        SIZES
        | {
            "type_vocab_size": 2, "layer_norm_eps": 1e-3, "hidden_act": "silu", "max_position_embeddings": 120,
            "rope_parameters": rope(300.0, rope_type="linear", factor=1.7),
        },
    ),
    "new": FamilyCase(
        "GteModel",
        "GteConfig",
        SIZES
        | {
            "type_vocab_size": 0, "max_position_embeddings": 120,
            "rope_parameters": rope(2 * 150.0, rope_type="linear", factor=2 ** (2 / 8)),
        },
        "metaspace",
        publish_gte,
        pooling="cls",
    ),
    "ernie": FamilyCase(
        "ErnieModel",
        "ErnieConfig",
        SIZES
        | {
            "hidden_size": 48, "max_position_embeddings": 122, "layer_norm_eps": 1e-3, "type_vocab_size": 3,
            "task_type_vocab_size": 2, "use_task_id": True,
        },
        deviation=0.4,
    ),
    "jina_bert": JINA_BERT,
    "jina_bert_code": replace(JINA_BERT, rename=publish_jina_code),
    "jina_embeddings_v3": FamilyCase(
        "JinaEmbeddingsV3Model",
        "JinaEmbeddingsV3Config",
        SIZES
        | {
            "layer_norm_eps": 1e-3, "hidden_act": "relu", "max_position_embeddings": 122, "rope_parameters": rope(77.0),
        },
        "metaspace",
    ),
    "jina_embeddings_v3, published": FamilyCase(
        "JinaEmbeddingsV3Model",
        "JinaEmbeddingsV3Config",
        SIZES | {"max_position_embeddings": LONG, "rope_parameters": rope(77.0)},
        "metaspace",
        publish_jina,
    ),
    "eurobert": FamilyCase(
        "EuroBertModel",
        "EuroBertConfig",
        GROUPED
        | IDS
        | {
            "rms_norm_eps": 1e-3, "hidden_act": "gelu", "max_position_embeddings": 120, "attention_bias": True,
            "mlp_bias": True, "rope_parameters": rope(77.0),
        },
        "bytelevel",
    ),
    "qwen3": FamilyCase(
        "Qwen3Model",
        "Qwen3Config",
        GROUPED
        | {
            "head_dim": 10, "rms_norm_eps": 1e-3, "hidden_act": "gelu", "max_position_embeddings": 120,
            "rope_parameters": rope(77.0),
        },
        "appended",
        pooling="lasttoken",
    ),
    "qwen3, windows": FamilyCase(
        "Qwen3Model",
        "Qwen3Config",
        GROUPED
        | {
            "head_dim": 8, "max_position_embeddings": LONG, "attention_bias": True, "use_sliding_window": True,
            "sliding_window": 7, "max_window_layers": 2,
        },
        "appended",
        pooling="lasttoken",
    ),
    "qwen3, bidirectional": FamilyCase(
        "Qwen3Model",
        "Qwen3Config",
        GROUPED
        | {
            "head_dim": 8, "max_position_embeddings": 120, "is_causal": False, "use_sliding_window": True,
            "sliding_window": 7, "max_window_layers": 2,
        },
        "appended",
    ),
    "llama": FamilyCase(
        "LlamaModel",
        "LlamaConfig",
        GROUPED
        | {
            "head_dim": 10, "rms_norm_eps": 1e-3, "hidden_act": "gelu", "max_position_embeddings": 120,
            "attention_bias": True, "mlp_bias": True,
            "rope_parameters": rope(
                77.0, rope_type="llama3", factor=3.0, low_freq_factor=1.5, high_freq_factor=4.0,
                original_max_position_embeddings=60,
            ),
        },
        "byte fallback",
        pooling="lasttoken",
    ),
    "mistral": FamilyCase(
        "MistralModel",
        "MistralConfig",
        GROUPED
        | {
            "head_dim": 10, "rms_norm_eps": 1e-3, "hidden_act": "gelu", "max_position_embeddings": LONG,
            "sliding_window": 9, "rope_parameters": rope(77.0),
        },
        "byte fallback",
        pooling="lasttoken",
    ),
    "mistral, bidirectional": FamilyCase(
        "MistralModel",
        "MistralConfig",
        GROUPED | {"max_position_embeddings": 120, "sliding_window": None, "is_causal": False},
        "byte fallback",
    ),
    "qwen2": FamilyCase(
        "Qwen2Model",
        "Qwen2Config",
        GROUPED
        | {
            "rms_norm_eps": 1e-3, "hidden_act": "gelu", "max_position_embeddings": LONG, "use_sliding_window": True,
            "sliding_window": 7, "max_window_layers": 2, "rope_parameters": rope(77.0),
        },
        "appended",
        pooling="lasttoken",
    ),
    "gemma3_text": FamilyCase(
        "Gemma3TextModel",
        "Gemma3TextConfig",
        GEMMA | {"use_bidirectional_attention": True, "sliding_window": 12},
        "byte fallback",
    ),
    "gemma3_text, causal": FamilyCase(
        "Gemma3TextModel", "Gemma3TextConfig", GEMMA | {"sliding_window": 9, "max_position_embeddings": LONG},
        "byte fallback", pooling="lasttoken",
    ),
}  # fmt: skip
