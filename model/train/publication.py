"""Writes the trained model in the formats of transformers and sentence-transformers."""

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from model.artifact.files import TRAINING
from model.artifact.manifest import DataFileRecord, TrainingRecord, split_pooling
from model.checkpoint import Checkpoint, published_tensors
from model.families import FAMILIES, attendant, bert
from model.families.family import ConfigReader
from model.source.hub import ModelSource
from model.source.published import read_tensors
from model.source.sentence_transformers import POOLING_FLAGS, POOLING_MODES, DenseLayer, EmbeddingConfig
from model.train.config import ModelOptions, TrainConfig
from model.train.loop import Result
from model.train.objectives import CrossEncoder, Objective, publish_classifier
from model.train.tokenizers import CLS, MASK, PAD, SEP, SPECIAL_TOKENS, UNK

HEAD_NAMES = {
    "transform.weight": "cls.predictions.transform.dense.weight",
    "transform.bias": "cls.predictions.transform.dense.bias",
    "norm.weight": "cls.predictions.transform.LayerNorm.weight",
    "norm.bias": "cls.predictions.transform.LayerNorm.bias",
    "bias": "cls.predictions.bias",
}
BERT_KEYS = (
    "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size",
    "max_position_embeddings", "type_vocab_size",
)  # fmt: skip
"""Fields of `EncoderConfig` with the same key in BERT's config.json."""
DTYPE_KEYS = ("dtype", "torch_dtype")
"""Keys for the type in which transformers loads the weights."""
TOKENIZER_FILES = ("tokenizer*", "special_tokens_map.json", "added_tokens.json", "vocab.*", "merges.txt", "*.model")


def publish(
    objective: Objective,
    config: TrainConfig,
    tokenizer: str,
    record: TrainingRecord,
    directory: Path,
    init: tuple[ModelSource, Checkpoint] | None,
) -> None:
    """Write a model that `transformers` and sentence-transformers open, with a model card and training.json.

    Args:
        objective: the trained network.
        config: the configuration of the run.
        tokenizer: tokenizer.json.
        record: the data for the model card.
        directory: replaced if it exists.
        init: the model that training started from, which determines the output format.
    """
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    if init is None:
        embedding = EmbeddingConfig(normalize=not objective.is_language_model)
        max_input_tokens = config.model.max_input_tokens
        _write_new(directory, objective, config.model.name, tokenizer, max_input_tokens)
    else:
        source, checkpoint = init
        embedding, max_input_tokens = checkpoint.embedding_config, checkpoint.max_input_tokens
        _write_tuned(directory, objective, config.model, checkpoint, source.directory)
        for notice in source.notices:
            shutil.copyfile(notice, directory / notice.name)
    if not isinstance(objective.network, CrossEncoder):
        hidden_size = objective.encoder.config.hidden_size
        _write_modules(directory, embedding, objective.dense, hidden_size, max_input_tokens)
    (directory / TRAINING).write_text(record.model_dump_json(indent=1) + "\n", encoding="utf-8")
    license_name = config.model.license or (None if init is None else init[0].license)
    card = describe(config.model.name, license_name, record)
    (directory / "README.md").write_text(card, encoding="utf-8")


def make_record(
    objective: Objective, config: TrainConfig, result: Result, precision: str, init: str | None
) -> TrainingRecord:
    """Return the record of a finished run."""
    files = [DataFileRecord(name=path.name, size=path.stat().st_size) for path in config.data.train]
    return TrainingRecord(
        objective=objective.name,
        initial_model=init,
        teacher=objective.teacher,
        data=tuple(files),
        steps=config.run.steps,
        tokens=result.tokens,
        seed=config.run.seed,
        precision=precision,
        validation_loss=result.validation_loss,
    )


def describe(name: str, license_name: str | None, record: TrainingRecord) -> str:
    """Return the model card, README.md with the metadata block of the Hugging Face Hub."""
    license_line = f"license: {license_name}\n" if license_name else ""
    files = "\n".join(f"- `{file.name}`, {file.size:,} bytes" for file in record.data)
    start = f"from `{record.initial_model}`" if record.initial_model else "from random weights"
    teacher = f", with the teacher `{record.teacher}`" if record.teacher else ""
    return (
        f"---\n{license_line}library_name: sentence-transformers\ntags:\n- sentence-transformers\n---\n\n# {name}\n\n"
        f"Trained with Attendant by {record.objective}{teacher}, {start}: {record.steps:,} steps, "
        f"{record.tokens:,} tokens, seed {record.seed}, validation loss {record.validation_loss:.4f}.\n\n"
        f"Training data:\n\n{files}\n\n"
        "`attendant evaluate --save` adds measures on labeled texts to the exported artifact.\n"
    )


def _write_new(directory: Path, objective: Objective, name: str, tokenizer: str, max_input_tokens: int) -> None:
    """Write a new encoder with the run's tokenizer, as BERT if the architecture allows it, else as "attendant"."""
    config = objective.encoder.config
    values = _bert_values(objective)
    if bert.read_config(ConfigReader(values)) == config:
        family, tensors = FAMILIES["bert"], _bert_tensors(objective)
    else:
        values = {"model_type": "attendant"} | attendant.write_config(config)
        family, tensors = FAMILIES["attendant"], objective.encoder.state_dict()
    if isinstance(objective.network, CrossEncoder):
        values, tensors = publish_classifier(objective.network, family, values, tensors)
    _write_tensors(directory / "model.safetensors", tensors)
    (directory / "tokenizer.json").write_text(tokenizer, encoding="utf-8")
    common = {"pad_token_id": SPECIAL_TOKENS.index(PAD)}
    _write_json(directory / "config.json", {"_name_or_path": name} | values | common)
    _write_json(
        directory / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": max_input_tokens,
            "model_input_names": ["input_ids", "token_type_ids", "attention_mask"],
            "pad_token": PAD, "unk_token": UNK, "cls_token": CLS, "sep_token": SEP, "mask_token": MASK,
        },
    )  # fmt: skip


def _bert_values(objective: Objective) -> dict[str, Any]:
    """Return the config.json values of a BERT with the encoder's sizes."""
    config = objective.encoder.config
    architecture = "BertModel"
    if objective.is_language_model:
        architecture = "BertLMHeadModel" if config.causal else "BertForMaskedLM"
    return {
        "architectures": [architecture],
        "model_type": "bert",
        **{name: getattr(config, name) for name in BERT_KEYS},
        "layer_norm_eps": config.norm_eps,
        "hidden_act": config.hidden_act,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "initializer_range": 0.02,
        "is_decoder": config.causal,
    }


def _bert_tensors(objective: Objective) -> dict[str, Tensor]:
    """Return the weights of the encoder and of the language model's head, under BERT's names."""
    family = FAMILIES["bert"]
    prefix = "bert." if objective.is_language_model else ""
    tensors = {
        f"{prefix}{family.published_name(name)}": tensor for name, tensor in objective.encoder.state_dict().items()
    }
    if objective.is_language_model:
        state = objective.network.state_dict()
        tensors |= {published: state[name] for name, published in HEAD_NAMES.items()}
    return tensors


def _write_tuned(
    directory: Path, objective: Objective, options: ModelOptions, checkpoint: Checkpoint, source: Path
) -> None:
    """Write a model with the config.json and tokenizer of its source, and the trained weights in float32."""
    family, config, encoder = checkpoint.family, checkpoint.config, objective.encoder
    tensors = published_tensors(family, config, read_tensors(source), encoder)
    indices = options.init_blocks or range(encoder.config.num_hidden_layers)
    changes = {"_name_or_path": options.name} | {key: "float32" for key in DTYPE_KEYS if key in config}
    values = family.select_layers(config, indices) | changes
    if isinstance(objective.network, CrossEncoder):
        values, tensors = publish_classifier(objective.network, family, values, tensors)
    _write_tensors(directory / "model.safetensors", tensors)
    _write_json(directory / "config.json", values)
    for pattern in TOKENIZER_FILES:
        for path in sorted(source.glob(pattern)):
            shutil.copyfile(path, directory / path.name)


def _write_modules(
    directory: Path, embedding: EmbeddingConfig, dense: tuple[DenseLayer, ...], hidden_size: int, max_input_tokens: int
) -> None:
    """Write the files of sentence-transformers: pooling, dense layers, normalization and prompts."""
    modules = [("Transformer", ""), ("Pooling", "1_Pooling")]
    for layer in dense:
        name = f"{len(modules)}_Dense"
        modules.append(("Dense", name))
        _write_dense(directory / name, layer)
    if embedding.normalize:
        modules.append(("Normalize", f"{len(modules)}_Normalize"))
    _write_json(
        directory / "modules.json",
        [
            {"idx": index, "name": str(index), "path": path, "type": f"sentence_transformers.models.{kind}"}
            for index, (kind, path) in enumerate(modules)
        ],
    )
    _write_json(directory / "sentence_bert_config.json", {"max_seq_length": max_input_tokens})
    _write_json(
        directory / "config_sentence_transformers.json",
        {
            "prompts": embedding.prompts,
            "default_prompt_name": embedding.default_prompt_name,
            "similarity_fn_name": embedding.similarity,
        },
    )
    modes = split_pooling(embedding.pooling)
    settings: dict[str, Any] = {f"pooling_mode_{key}": mode in modes for key, mode in POOLING_FLAGS.items()}
    if len(modes) > 1:  # flags cannot express an order
        settings = {"pooling_mode": [POOLING_MODES[mode] for mode in modes]}
    _write_json(directory / "1_Pooling" / "config.json", {"word_embedding_dimension": hidden_size} | settings)


def _write_dense(directory: Path, layer: DenseLayer) -> None:
    outputs, inputs = layer.weight.shape
    names = {"tanh": "torch.nn.modules.activation.Tanh", "identity": "torch.nn.modules.linear.Identity"}
    _write_json(
        directory / "config.json",
        {"in_features": inputs, "out_features": outputs, "bias": layer.bias is not None,
         "activation_function": names[layer.activation]},
    )  # fmt: skip
    tensors = {"linear.weight": layer.weight} | ({} if layer.bias is None else {"linear.bias": layer.bias})
    _write_tensors(directory / "model.safetensors", tensors)


def _write_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    stored = {name: tensor.detach().cpu().to(torch.float32).contiguous() for name, tensor in tensors.items()}
    save_file(stored, path, metadata={"format": "pt"})
    path.chmod(0o644)  # safetensors writes files that only their owner can read


def _write_json(path: Path, document: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
