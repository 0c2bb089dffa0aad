"""Lines that `attendant-model` prints about an artifact: its embedding settings, training and evaluations."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from model.artifact.manifest import (
    ASSUMED,
    ClassifierPooling,
    EvaluationRecord,
    Manifest,
    Pooling,
    ScoreActivation,
    TrainingRecord,
)

LISTED_LABELS = 8


@dataclass(frozen=True)
class EmbeddingSettings:
    """The settings that turn a text into an embedding, and the origin of each: a file, an option or `ASSUMED`.

    `prompts` are the names of those with a text. `dense` has one (inputs, outputs, activation) per layer.
    """

    pooling: Pooling
    include_prompt: bool
    normalize: bool
    max_input_tokens: int
    prompts: Sequence[str]
    default_prompt_name: str | None
    dense: Sequence[tuple[int, int, str]]
    origins: Mapping[str, str]

    @classmethod
    def from_manifest(cls, manifest: Manifest) -> "EmbeddingSettings":
        """Return the settings of an artifact."""
        head = manifest.embedding
        return cls(
            head.pooling,
            head.include_prompt,
            head.normalize,
            manifest.max_input_tokens,
            [name for name, text in manifest.prompts.items() if text],
            manifest.default_prompt_name,
            [(layer.weight.shape[1], layer.weight.shape[0], layer.activation) for layer in head.dense],
            manifest.origins,
        )

    def describe(self) -> Iterator[str]:
        """Yield one line per setting, with its origin in parentheses."""
        values = {
            "pooling": self.pooling + ("" if self.include_prompt else ", without the prompt"),
            "normalize": "yes" if self.normalize else "no",
            "max_input_tokens": f"{self.max_input_tokens:,} tokens",
            "prompts": ", ".join(self.prompts) or "none",
            "dense": ", ".join(f"{inputs} to {outputs} {activation}" for inputs, outputs, activation in self.dense)
            or "none",
        }
        if self.default_prompt_name in self.prompts:
            values["prompts"] += f"; default {self.default_prompt_name}"
        labels = {"normalize": "normalization", "max_input_tokens": "maximum length", "dense": "dense layers"}
        for name, value in values.items():
            origin = self.origins.get(name)
            yield f"{labels.get(name, name)}: {value}" + (f" ({origin})" if origin else "")

    def warning(self, source: str, revision: str | None = None) -> str | None:
        """Return a warning about settings that no file of the model contains; None without one.

        Args:
            source: The source of the export, for the command that sets them.
            revision: The option `--revision`.
        """
        values = {"pooling": f"{self.pooling} pooling", "normalize": "no normalization"}
        assumed = [name for name in values if self.origins.get(name) == ASSUMED]
        if not assumed:
            return None
        options = {"pooling": f"--pooling {self.pooling}", "normalize": "--no-normalize"}
        command = ["attendant-model export", shlex.quote(source), *([f"--revision {revision}"] if revision else [])]
        command += ["-o DIR", *(options[name] for name in assumed)]
        return (
            f"warning: assumed {' and '.join(values[name] for name in assumed)}, which no file of the model sets. The "
            "embeddings are wrong if the model was trained with other settings. If its model card names others, "
            f"change the options of this command, run it, and serve DIR: {' '.join(command)}"
        )


def describe_classifier(labels: Sequence[str], pooling: ClassifierPooling, activation: ScoreActivation) -> str:
    """Return one line about a classifier; with one label, it scores pairs."""
    kind = "cross-encoder" if len(labels) == 1 else "classifier"
    return f"{kind}: {_count_labels(labels)}, pooling {pooling}, activation {activation}"


def describe_other_heads(
    token_labels: Sequence[str] | None, *, masked_lm: bool, sparse: bool, multi_vector: bool
) -> Iterator[str]:
    """Yield lines about heads other than the embedding and the classifier, with the labels of a token classifier."""
    if token_labels is not None:
        yield f"token classifier: {_count_labels(token_labels)}"
    heads = {"sparse vectors": sparse, "multi-vector": multi_vector, "masked LM": masked_lm}
    if any(heads.values()):
        yield f"other heads: {', '.join(name for name, is_present in heads.items() if is_present)}"


def _count_labels(labels: Sequence[str]) -> str:
    listed = ", ".join(labels[:LISTED_LABELS]) + (", ..." if len(labels) > LISTED_LABELS else "")
    return f"{'1 label' if len(labels) == 1 else f'{len(labels)} labels'} ({listed})"


def describe_training(training: TrainingRecord) -> str:
    """Return one line about how a model was trained."""
    files = ", ".join(f"{file.name} ({file.size:,} bytes)" for file in training.data)
    line = f"training: {training.objective}, {training.steps:,} steps, {training.tokens:,} tokens of {files}"
    line += f", from {training.initial_model}" if training.initial_model else ""
    line += f", teacher {training.teacher}" if training.teacher else ""
    line += f", {training.precision}, seed {training.seed}, validation loss {training.validation_loss:.4f}"
    return line


def describe_evaluation(evaluation: EvaluationRecord) -> str:
    """Return one line about a measure."""
    line = f"evaluation {evaluation.task}, {evaluation.file}: {evaluation.measure} {evaluation.value:.3f}"
    if evaluation.low is not None and evaluation.high is not None:
        line += f" [{evaluation.low:.3f}, {evaluation.high:.3f}]"
    return line
