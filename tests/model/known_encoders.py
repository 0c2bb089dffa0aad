"""Encoders of the well-known models, without memory for their weights."""

from collections.abc import Iterator, Mapping, Sequence

import torch

from model.encoder import Encoder, EncoderConfig
from model.families import FAMILIES, find_family
from model.families.family import CAUSAL_CLASSIFIER, ConfigReader
from model.source.known_models import KNOWN_MODELS, KnownModel

WITHOUT_CLASSIFIER = ("t5", "mt5")
"""Architectures whose classifiers read a decoder."""


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


def supported_heads() -> list[tuple[str, dict[str, bool]]]:
    """Return the heads of each architecture, which the tests of heads run: see `CLASSIFIER_CASES` and others."""
    return [
        (
            name,
            {
                "classifier, cross-encoder": name not in WITHOUT_CLASSIFIER,
                "token classifier": True,
                "masked LM, SPLADE": family.masked_lm is not None,
                "BGE-M3, ColBERT": True,
                "causal reranker": family.classifier is CAUSAL_CLASSIFIER,
            },
        )
        for name, family in sorted(FAMILIES.items())
    ]


def describe_models(heads: Sequence[tuple[str, Mapping[str, bool]]]) -> str:
    """Return docs/models.md; `heads` lists the heads of each architecture."""
    lines = [INTRODUCTION]
    for model in KNOWN_MODELS:
        layers, size = model.shape
        lines.append(
            f"| `{model.hub_id}` | {', '.join(model.tasks) or 'training'} | {model.languages} | "
            f"`{model.model_type}` | {layers} | {size} | {model.millions:,g} | "
            f"{model.max_input_tokens:,} | {model.pooling} | {model.prompts} | {model.license} | {model.proof} |"
        )
    lines += [BACKENDS + HEADS, *_table(heads, "none")]
    return "\n".join(lines) + "\n"


def _table(architectures: Sequence[tuple[str, Mapping[str, bool]]], missing: str) -> Iterator[str]:
    """Yield the lines of a table with a row per architecture."""
    names = list(architectures[0][1])
    yield f"| architecture | {' | '.join(names)} |"
    yield f"|{'---|' * (len(names) + 1)}"
    for architecture, supported in architectures:
        cells = ["yes" if supported[name] else missing for name in names]
        yield f"| `{architecture}` | {' | '.join(cells)} |"


INTRODUCTION = """\
# Models

`make docs` writes this page from model/source/known_models.py and model/families/. `attendant-model list --models`
prints a part of it.

Each model is served with one command, for example:

```sh
.venv/bin/attendant serve Alibaba-NLP/gte-modernbert-base
```

The encoder is rebuilt from config.json and the weights. Code in a repository is never executed, and unknown tensors and
unknown keys of config.json that may change the result are errors.

The last column names the weights that this project's tests use. Only the default model is tested with its published
weights, because the test machines have no others. For every other model, the tests use a small model of the same
architecture with random weights: its hidden states match transformers to 1e-5 of their largest value, and its attention
probabilities to 1e-5 (`eurobert`: 2e-5). Before you rely on such a model, compare a few embeddings with the examples
on its model card.

The architectures `camembert`, `electra`, `ernie`, `gte`, `llama` and `mt5` have no row, because none of the models
chosen for this table uses them. They are supported and tested with random weights, too. `attendant-model train` makes
encoders of the architecture `attendant`.

Parameters are in millions, without heads. [Your own model](own-model.md) describes the files that a model needs, and
[CONTRIBUTING.md](../CONTRIBUTING.md#adding-a-model-family) how to add an architecture.

| model | made for | languages | type | layers | size | parameters | tokens | pooling | prompts | license | tested |
|---|---|---|---|---|---|---|---|---|---|---|---|"""
BACKENDS = """
## Backends

Every architecture runs with ONNX Runtime and with OpenVINO in float32, bfloat16 and int8, and has a graph for CUDA in
float16. On a GPU, only models with BERT's layers have been run ([GPU](gpu.md)).

Whether a precision is accurate enough depends on the weights, so the server compares the results of every head with
golden vectors at [every start](own-model.md#accuracy). A precision below its floor is refused with the measured cosine,
or replaced by float32 under `auto`. jina-embeddings-v3 is published as `xlm-roberta` with rotary positions and is the
architecture `jina_embeddings_v3` here. Jina's v2 models are published as `bert` and are `jina_bert`, except for
jina-embeddings-v2-base-code: the names of its weights show that it is `jina_bert_code`.
"""
HEADS = """
## Heads

A checkpoint can have these heads in addition to its embeddings. Heads run in float32 on the hidden states of the
backend, in every precision. `none` means that no such models of the architecture are known.
[Your own model](own-model.md#rerankers-and-classifiers) describes the files.
"""
