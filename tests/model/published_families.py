"""The names and values of published checkpoints, from those that transformers writes."""

import re
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

LORA_RANK = 4
TASKS = ("retrieval.query", "retrieval.passage", "separation", "classification", "text-matching")
SCALED_FROM = 512
"""The length beyond which dynamic scaling applies."""
Rename = Callable[[dict[str, Any], dict[str, Tensor]], tuple[dict[str, Any], dict[str, Tensor]]]


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


def publish_jina_bert(config: dict[str, Any], tensors: dict[str, Tensor]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the files of JinaBERT from those of GTE, whose rotation the case switches off.

    GTE's blocks are those of JinaBERT; `alibi_mask` adds the biases to the oracle.
    """
    tensors = renamed(
        fuse(tensors, ("mlp.gate_proj", "mlp.up_proj"), "mlp.gated_layers"),
        {
            r"^gte\.": "bert.", r"^(bert\.)?layers": r"\1encoder.layer", "self_attn.o_proj": "attention.output.dense",
            r"self_attn\.q_proj": "attention.self.query", r"self_attn\.k_proj": "attention.self.key",
            r"self_attn\.v_proj": "attention.self.value", "post_attention_layernorm": "attention.output.LayerNorm",
            "post_mlp_layernorm": "mlp.layernorm", "down_proj": "wo",
        },
    )  # fmt: skip
    del config["rope_parameters"]
    return config | {
        "model_type": "bert", "position_embedding_type": "alibi", "feed_forward_type": "geglu",
        "attn_implementation": "torch", "emb_pooler": "mean", "is_decoder": False,
    }, tensors  # fmt: skip


def publish_jina_code(config: dict[str, Any], tensors: dict[str, Tensor]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the files of jina-embeddings-v2-base-code from those of GTE.

    `add_jina_code` adds what its blocks have in addition to the oracle.
    """
    config, tensors = publish_jina_bert(config, fuse(tensors, ("mlp.up_proj", "mlp.gate_proj"), "mlp.up_gated_layer"))
    tensors = renamed(tensors, {r"mlp\.layernorm": "layer_norm_2", r"mlp\.wo": "mlp.down_layer"})
    generator, size = torch.Generator().manual_seed(5), config["hidden_size"]
    for name in [name for name in tensors if name.endswith("attention.self.query.weight")]:
        layer = name.removesuffix("attention.self.query.weight")
        for norm in ("attention.self.layer_norm_q", "attention.self.layer_norm_k", "layer_norm_1"):
            for leaf, center in (("weight", 1.0), ("bias", 0.0)):
                tensors[f"{layer}{norm}.{leaf}"] = center + 0.2 * torch.randn(size, generator=generator)
    return config, tensors


def add_jina_code(model: Any, tensors: Mapping[str, Tensor]) -> None:
    """Add the extra parts of jina-embeddings-v2-base-code blocks to a GTE of transformers."""

    def norm(name: str) -> torch.nn.LayerNorm:
        weight, bias = (next(tensors[key] for key in tensors if key.endswith(f"{name}.{leaf}")) for leaf in NORM_LEAVES)
        module = torch.nn.LayerNorm(len(weight), eps=model.config.layer_norm_eps)
        module.load_state_dict({"weight": weight, "bias": bias})
        return module.eval()

    for index, layer in enumerate(model.base_model.layers):
        prefix, attention = f"layer.{index}.", layer.self_attn
        inputs: list[Tensor] = []
        attention.q_proj = torch.nn.Sequential(attention.q_proj, norm(f"{prefix}attention.self.layer_norm_q"))
        attention.k_proj = torch.nn.Sequential(attention.k_proj, norm(f"{prefix}attention.self.layer_norm_k"))
        second = norm(f"{prefix}layer_norm_1")
        layer.register_forward_pre_hook(lambda _, arguments, inputs=inputs: inputs.append(arguments[0]))
        layer.post_attention_layernorm.register_forward_hook(
            lambda _, arguments, output, second=second, inputs=inputs: second(inputs.pop() + output)
        )


NORM_LEAVES = ("weight", "bias")


def alibi_mask(attention_mask: Tensor, heads: int) -> Tensor:
    """Return the mask for the oracle of JinaBERT with three heads, (N, H, T, T)."""
    assert heads == 3
    slopes = torch.tensor([1 / 16, 1 / 256, 1 / 4])
    places = torch.arange(attention_mask.shape[1])
    biases = -slopes.view(-1, 1, 1) * (places[:, None] - places).abs()
    hidden = (1 - attention_mask[:, None, None, :].float()) * torch.finfo(torch.float32).min
    return biases + hidden


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
