"""The trained model in the formats of transformers and sentence-transformers."""

import json
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from model.checkpoint import FAMILIES, published_name
from model.train.config import ModelOptions
from model.train.network import MaskedLanguageModel
from model.train.tokenizers import CLS, MASK, PAD, SEP, SPECIAL_TOKENS, UNK

HEAD_NAMES = {
    "transform.weight": "cls.predictions.transform.dense.weight",
    "transform.bias": "cls.predictions.transform.dense.bias",
    "norm.weight": "cls.predictions.transform.LayerNorm.weight",
    "norm.bias": "cls.predictions.transform.LayerNorm.bias",
    "bias": "cls.predictions.bias",
}
MODULES = [("Transformer", ""), ("Pooling", "1_Pooling")]


def publish(network: MaskedLanguageModel, options: ModelOptions, tokenizer: str, directory: Path) -> None:
    """Write a model that `transformers` opens as BertForMaskedLM, and sentence-transformers with mean pooling."""
    config = network.encoder.config
    (directory / "1_Pooling").mkdir(parents=True, exist_ok=True)
    tensors = {}
    for name, tensor in network.state_dict().items():
        if name in HEAD_NAMES:
            tensors[HEAD_NAMES[name]] = tensor
        else:
            tensors[f"bert.{published_name(FAMILIES['bert'], name.removeprefix('encoder.'))}"] = tensor
    save_file(
        {name: tensor.detach().cpu().float().contiguous() for name, tensor in tensors.items()},
        directory / "model.safetensors",
        metadata={"format": "pt"},
    )
    (directory / "tokenizer.json").write_text(tokenizer, encoding="utf-8")
    _write_json(
        directory / "config.json",
        {
            "architectures": ["BertForMaskedLM"],
            "model_type": "bert",
            "vocab_size": config.vocab_size,
            "hidden_size": config.hidden_size,
            "num_hidden_layers": config.num_hidden_layers,
            "num_attention_heads": config.num_attention_heads,
            "intermediate_size": config.intermediate_size,
            "max_position_embeddings": config.max_position_embeddings,
            "type_vocab_size": config.type_vocab_size,
            "layer_norm_eps": config.layer_norm_eps,
            "hidden_act": config.hidden_act,
            "hidden_dropout_prob": 0.0,
            "attention_probs_dropout_prob": 0.0,
            "initializer_range": 0.02,
            "pad_token_id": SPECIAL_TOKENS.index(PAD),
        },
    )
    _write_json(
        directory / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": options.max_input_tokens,
            "pad_token": PAD, "unk_token": UNK, "cls_token": CLS, "sep_token": SEP, "mask_token": MASK,
        },
    )  # fmt: skip
    _write_json(
        directory / "modules.json",
        [
            {"idx": index, "name": str(index), "path": path, "type": f"sentence_transformers.models.{kind}"}
            for index, (kind, path) in enumerate(MODULES)
        ],
    )
    _write_json(directory / "sentence_bert_config.json", {"max_seq_length": options.max_input_tokens})
    _write_json(
        directory / "1_Pooling" / "config.json",
        {"word_embedding_dimension": config.hidden_size, "pooling_mode_mean_tokens": True,
         "pooling_mode_cls_token": False, "pooling_mode_max_tokens": False},
    )  # fmt: skip
    license_line = f"license: {options.license}\n" if options.license else ""
    (directory / "README.md").write_text(
        f"---\n{license_line}---\n\n# {options.name}\n\nTrained with Attendant.\n", encoding="utf-8"
    )


def _write_json(path: Path, document: Any) -> None:
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
