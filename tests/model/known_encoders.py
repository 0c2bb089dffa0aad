"""Encoders of the well-known models, without memory for their weights."""

from collections.abc import Mapping

import torch

from model.encoder import Encoder, EncoderConfig
from model.export.cuda import unsupported_part
from model.families import FAMILIES, find_family
from model.families.family import ConfigReader
from model.source.known_models import KNOWN_MODELS, KnownModel


def known_config(model: KnownModel) -> EncoderConfig:
    family, reader = find_family(model.config), ConfigReader(model.config)
    assert family is not None
    config = family.read_config(reader)
    family.first_position(reader)
    reader.reject_unknown()
    return config


def count_parameters(model: KnownModel) -> int:
    with torch.device("meta"):
        encoder = Encoder(known_config(model))
    return sum(parameter.numel() for parameter in encoder.parameters())


def supported_backends() -> list[tuple[str, Mapping[str, bool]]]:
    """Return the backends of each architecture; those without a well-known model have BERT's parts."""
    configs = {}
    for model in KNOWN_MODELS:
        family = find_family(model.config)
        assert family is not None
        configs[family.name] = known_config(model)
    rows: list[tuple[str, Mapping[str, bool]]] = []
    for name in sorted(FAMILIES):
        config = configs.get("new" if name == "gte" else name)
        cpu = dict.fromkeys(("ONNX Runtime", "OpenVINO float32", "OpenVINO bfloat16", "OpenVINO int8"), True)
        rows.append((name, {**cpu, "CUDA float16": config is None or unsupported_part(config) is None}))
    return rows


def supported_heads() -> list[tuple[str, dict[str, bool]]]:
    """Return the heads of each architecture, which the tests of heads run: see `CLASSIFIER_CASES` and others."""
    return [
        (
            name,
            {
                "classifier, cross-encoder": True,
                "token classifier": True,
                "masked LM, SPLADE": family.masked_lm is not None,
                "BGE-M3, ColBERT": True,
                "causal reranker": name == "qwen3",
            },
        )
        for name, family in sorted(FAMILIES.items())
    ]
