"""One tiny model per architecture, with random weights and every config key away from its default.

Unless a case says otherwise, weights have a standard deviation of 0.3, so that attention is far from uniform. Config
keys and tensors have the names that transformers writes. In "published" cases, they have the names of the checkpoints
on the Hugging Face Hub.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tokenizers
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

SIZES = {"hidden_size": 24, "num_hidden_layers": 4, "num_attention_heads": 3, "intermediate_size": 37}
GROUPED = SIZES | {"num_attention_heads": 6, "num_key_value_heads": 2}
SCALED_FROM = 512
"""The length beyond which dynamic scaling applies."""
LONG = 1300
"""More positions than rows with masks of size T x T have."""
Rename = Callable[[dict[str, Any], dict[str, Tensor]], tuple[dict[str, Any], dict[str, Tensor]]]


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

    def publish(self, directory: Path, tokenizer: bytes) -> None:
        """Write config.json, weights and tokenizer. The directory `directory/oracle` has what transformers loads."""
        vocab_size = tokenizers.Tokenizer.from_str(tokenizer.decode()).get_vocab_size()
        config = getattr(transformers, self.config)(vocab_size=vocab_size, **self.options)
        model = getattr(transformers, self.architecture)(config).eval()
        generator = torch.Generator().manual_seed(17)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                is_norm = name.endswith("weight") and parameter.dim() == 1 and "norm" in name.lower()
                center = 1.0 if is_norm and "Gemma" not in self.architecture else 0.0
                parameter.copy_(center + self.deviation * torch.randn(parameter.shape, generator=generator))
        save_native(model, directory)
        if self.rename is not None:
            save_native(model, directory / "oracle")
            config_values = json.loads((directory / "config.json").read_text())
            values, tensors = self.rename(config_values, load_file(directory / "model.safetensors"))
            values |= {key: config_values[key] for key in ("architectures", "id2label") if key in config_values}
            (directory / "config.json").write_text(json.dumps(values))
            save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, directory / "model.safetensors")
        (directory / "tokenizer.json").write_bytes(tokenizer)
        if self.pooling is not None:
            modules = [{"type": "models.Transformer", "path": ""}, {"type": "models.Pooling", "path": "1_Pooling"}]
            (directory / "modules.json").write_text(json.dumps(modules))
            (directory / "1_Pooling").mkdir()
            (directory / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode": self.pooling}))


def save_native(model: transformers.PreTrainedModel, directory: Path) -> None:
    """Save a model in the names of transformers, which `save_pretrained` turns into those of published files."""
    model.config.architectures = [type(model).__name__]
    model.config.save_pretrained(directory)
    tensors = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    heads_first = sorted(tensors, key=lambda name: "embed" in name)
    unique = {tensors[name].data_ptr(): name for name in heads_first}  # a tied head is stored once, as embeddings
    save_file({name: tensors[name] for name in unique.values()}, directory / "model.safetensors", {"format": "pt"})


def oracle_directory(directory: Path) -> Path:
    """Return the directory from which transformers loads the same weights."""
    return directory / "oracle" if (directory / "oracle").is_dir() else directory


def renamed(tensors: Mapping[str, Tensor], names: Mapping[str, str]) -> dict[str, Tensor]:
    """Replace patterns in names."""

    def rename(name: str) -> str:
        for pattern, replacement in names.items():
            name = re.sub(pattern, replacement, name)
        return name

    return {rename(name): tensor for name, tensor in tensors.items()}


def fuse(tensors: dict[str, Tensor], parts: tuple[str, ...], fused: str) -> dict[str, Tensor]:
    """Concatenate the rows of modules."""
    result = dict(tensors)
    for name in tensors:
        if f".{parts[0]}." in name:
            result[name.replace(parts[0], fused)] = torch.cat(
                [result.pop(name.replace(parts[0], part)) for part in parts]
            )
    return result


QKV = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")


def publish_modernbert(config: dict[str, Any], tensors: dict[str, Tensor]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    rope_parameters = config.pop("rope_parameters")
    del config["layer_types"]
    return config | {
        "global_rope_theta": rope_parameters["full_attention"]["rope_theta"],
        "local_rope_theta": rope_parameters["sliding_attention"]["rope_theta"],
        "global_attn_every_n_layers": 2,
        "position_embedding_type": "absolute",
        "reference_compile": None,
    }, renamed(tensors, {"^": "model."})


def publish_nomic(config: dict[str, Any], tensors: dict[str, Tensor]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    tensors = renamed(
        fuse(tensors, QKV, "attn.Wqkv"),
        {
            "^layers": "encoder.layers", "embeddings.LayerNorm": "emb_ln", "self_attn.o_proj": "attn.out_proj",
            "up_proj": "fc11", "gate_proj": "fc12", "down_proj": "fc2", "post_attention_layernorm": "norm1",
            "post_mlp_layernorm": "norm2",
        },
    )  # fmt: skip
    rope_parameters = config["rope_parameters"]
    return {
        "model_type": "nomic_bert", "activation_function": "swiglu",
        "attn_pdrop": 0.0, "causal": False, "layer_norm_epsilon": config["layer_norm_eps"], "n_embd": 24, "n_head": 3,
        "n_inner": 37, "n_layer": 4, "n_positions": 1200, "scale_attn_weights": True,
        "max_trained_positions": SCALED_FROM, "prenorm": False,
        "parallel_block": False, "qkv_proj_bias": False, "mlp_fc1_bias": False, "mlp_fc2_bias": False,
        "rotary_emb_base": rope_parameters["rope_theta"], "rotary_emb_fraction": 1.0, "rotary_emb_interleaved": False,
        "rotary_emb_scale_base": None, "rotary_scaling_factor": rope_parameters["factor"], "type_vocab_size": 2,
        "use_flash_attn": True, "use_rms_norm": False, "vocab_size": config["vocab_size"],
    }, tensors  # fmt: skip


def publish_gte(config: dict[str, Any], tensors: dict[str, Tensor]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Scale statically: NTK with theta and s equals a linear scaling with s * theta and s ** (2 / d)."""
    tensors = fuse(fuse(tensors, QKV, "attention.qkv_proj"), ("mlp.up_proj", "mlp.gate_proj"), "mlp.up_gate_proj")
    tensors = renamed(
        tensors,
        {
            r"^gte\.": "", "^layers": "encoder.layer", "self_attn.o_proj": "attention.o_proj",
            "post_attention_layernorm": "attn_ln", "post_mlp_layernorm": "mlp_ln", "^(?!classifier)": "new.",
        },
    )  # fmt: skip
    del config["rope_parameters"]
    return config | {
        "model_type": "new", "position_embedding_type": "rope", "layer_norm_type": "layer_norm", "pack_qkv": True,
        "rope_theta": 150.0, "rope_scaling": {"type": "ntk", "factor": 2.0}, "logn_attention_scale": "false",
        "logn_attention_clip1": "false", "unpad_inputs": "false", "use_memory_efficient_attention": "false",
    }, tensors  # fmt: skip


def publish_jina(config: dict[str, Any], tensors: dict[str, Tensor]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Add low-rank adapters of five tasks to every linear layer and embedding table."""
    tensors = renamed(
        fuse(tensors, QKV, "mixer.Wqkv"),
        {
            "^layers": "encoder.layers", "embeddings.LayerNorm": "emb_ln", "self_attn.o_proj": "mixer.out_proj",
            "post_attention_layernorm": "norm1", "post_mlp_layernorm": "norm2", "^": "roberta.",
        },
    )  # fmt: skip
    generator, adapted = torch.Generator().manual_seed(3), {}
    for name, tensor in tensors.items():
        module = name.removesuffix(".weight")
        if tensor.dim() != 2:
            adapted[name] = tensor
            continue
        rows, columns = tensor.shape
        adapted[f"{module}.parametrizations.weight.original"] = tensor
        a = (rows, LORA_RANK) if "embeddings" in name else (LORA_RANK, columns)
        b = (LORA_RANK, columns) if "embeddings" in name else (rows, LORA_RANK)
        for part, shape in {"A": a, "B": b}.items():
            pairs = torch.randn(len(TASKS), *shape, generator=generator)
            adapted[f"{module}.parametrizations.weight.0.lora_{part}"] = 0.3 * pairs
    rope_parameters = config.pop("rope_parameters")
    return config | {
        "model_type": "xlm-roberta", "position_embedding_type": "rotary", "use_flash_attn": True,
        "rotary_emb_base": rope_parameters["rope_theta"], "lora_adaptations": list(TASKS), "lora_alpha": 1,
        "lora_rank": LORA_RANK, "lora_dropout_p": 0.0, "load_trained_adapters": True,
    }, adapted  # fmt: skip


LORA_RANK = 4
TASKS = ("retrieval.query", "retrieval.passage", "separation", "classification", "text-matching")
IDS = {"pad_token_id": 1, "bos_token_id": 2, "eos_token_id": 3}
MODERNBERT = SIZES | IDS | {
    "cls_token_id": 2, "sep_token_id": 3, "max_position_embeddings": 120, "local_attention": 10, "norm_eps": 1e-3,
    "hidden_activation": "silu", "global_attn_every_n_layers": 2,
    "rope_parameters": {"full_attention": rope(500.0), "sliding_attention": rope(50.0)},
}  # fmt: skip
GEMMA = SIZES | {
    "num_key_value_heads": 1, "head_dim": 10, "rms_norm_eps": 1e-3, "query_pre_attn_scalar": 31,
    "max_position_embeddings": 120, "layer_types": ["sliding_attention", "full_attention"] * 2,
    "hidden_activation": "silu", "pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 1,
    "rope_parameters": {
        "full_attention": rope(500.0, rope_type="linear", factor=2.0), "sliding_attention": rope(50.0),
    },
}  # fmt: skip
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
