"""Lines that `attendant-model` prints about a model: embedding settings, heads, training and evaluations."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from model.artifact.manifest import (
    ASSUMED,
    ClassificationHead,
    EmbeddingHead,
    EvaluationRecord,
    TokenClassificationHead,
    TrainingRecord,
)

if TYPE_CHECKING:  # `verify` works without torch
    from model.source.sentence_transformers import EmbeddingConfig

LISTED_LABELS = 8


def describe_settings(
    embedding: "EmbeddingHead | EmbeddingConfig",
    prompts: Mapping[str, str],
    default_prompt_name: str | None,
    max_input_tokens: int,
    origins: Mapping[str, str],
) -> Iterator[str]:
    """Yield one line per setting of the embedding, with its origin in parentheses: a file, an option or `ASSUMED`."""
    dense = [f"{layer.weight.shape[1]} to {layer.weight.shape[0]} {layer.activation}" for layer in embedding.dense]
    names = [name for name, text in prompts.items() if text]
    default = f"; default {default_prompt_name}" if default_prompt_name in names else ""
    lines = {
        "pooling": ("pooling", embedding.pooling + ("" if embedding.include_prompt else ", without the prompt")),
        "normalize": ("normalization", "yes" if embedding.normalize else "no"),
        "max_input_tokens": ("maximum length", f"{max_input_tokens:,} tokens"),
        "prompts": ("prompts", (", ".join(names) or "none") + default),
        "dense": ("dense layers", ", ".join(dense) or "none"),
    }
    for setting, (label, value) in lines.items():
        yield f"{label}: {value}" + (f" ({origins[setting]})" if origins.get(setting) else "")


def warn_about_assumptions(
    pooling: str, origins: Mapping[str, str], source: str, revision: str | None = None
) -> str | None:
    """Return a warning about settings that are in none of the model's files; None if there are none.

    `source` and `revision` complete the suggested export command.
    """
    values = {"pooling": f"{pooling} pooling", "normalize": "no normalization"}
    assumed = [name for name in values if origins.get(name) == ASSUMED]
    if not assumed:
        return None
    options = {"pooling": f"--pooling {pooling}", "normalize": "--no-normalize"}
    command = ["attendant-model export", shlex.quote(source), *([f"--revision {revision}"] if revision else [])]
    command += ["-o DIR", *(options[name] for name in assumed)]
    return (
        f"warning: assumed {' and '.join(values[name] for name in assumed)}, which no file of the model sets. The "
        "embeddings are wrong if the model was trained with other settings. If its model card names others, "
        f"change the options of this command, run it, and serve DIR: {' '.join(command)}"
    )


def describe_heads(
    classifier: ClassificationHead | None, tokens: TokenClassificationHead | None, others: Mapping[str, object]
) -> Iterator[str]:
    """Yield lines about the heads other than the embedding head. `others` are heads without options, None if absent."""
    if classifier is not None:
        kind = "cross-encoder" if len(classifier.labels) == 1 else "classifier"
        labels = _count_labels(classifier.labels)
        yield f"{kind}: {labels}, pooling {classifier.pooling}, activation {classifier.activation}"
    if tokens is not None:
        yield f"token classifier: {_count_labels(tokens.labels)}"
    if names := [name for name, head in others.items() if head is not None]:
        yield f"other heads: {', '.join(names)}"


def _count_labels(labels: Sequence[str]) -> str:
    listed = ", ".join(labels[:LISTED_LABELS]) + (", ..." if len(labels) > LISTED_LABELS else "")
    return f"{'1 label' if len(labels) == 1 else f'{len(labels)} labels'} ({listed})"


def describe_training(training: TrainingRecord) -> str:
    files = ", ".join(f"{file.name} ({file.size:,} bytes)" for file in training.data)
    line = f"training: {training.objective}, {training.steps:,} steps, {training.tokens:,} tokens of {files}"
    line += f", from {training.initial_model}" if training.initial_model else ""
    line += f", teacher {training.teacher}" if training.teacher else ""
    line += f", {training.precision}, seed {training.seed}, validation loss {training.validation_loss:.4f}"
    return line


def describe_evaluation(evaluation: EvaluationRecord) -> str:
    line = f"evaluation {evaluation.task}, {evaluation.file}: {evaluation.measure} {evaluation.value:.3f}"
    if evaluation.low is not None and evaluation.high is not None:
        line += f" [{evaluation.low:.3f}, {evaluation.high:.3f}]"
    return line
