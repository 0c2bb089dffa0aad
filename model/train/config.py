"""Options of a training run, read from a TOML file. Each option is declared once, here."""

import tomllib
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

Positive = Annotated[int, Field(gt=0)]
Fraction = Annotated[float, Field(ge=0, lt=1)]


class TrainError(Exception):
    """An invalid configuration, unusable data, or a failed run. The message names the option or file."""


class Section(BaseModel):
    """Options that are fixed after reading; unknown names are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class TokenizerOptions(Section):
    """The tokenizer, trained on the training texts."""

    kind: Literal["wordpiece", "bpe"] = "wordpiece"
    vocab_size: Annotated[int, Field(ge=16)] = 8000
    lowercase: bool = True
    max_texts: Positive = Field(1_000_000, description="Number of texts to train on.")


class ModelOptions(Section):
    """The sizes of the encoder, named as in Hugging Face's config.json."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    license: str | None = None
    hidden_size: Positive = 256
    num_hidden_layers: Positive = 4
    num_attention_heads: Positive = 4
    intermediate_size: Positive = 1024
    max_input_tokens: Annotated[int, Field(ge=8)] = 128
    positions: Literal["learned", "sinusoidal"] = "learned"

    @model_validator(mode="after")
    def _check_heads(self) -> "ModelOptions":
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"hidden_size is not a multiple of num_attention_heads ({self.hidden_size}, {self.num_attention_heads})"
            )
        if self.positions == "sinusoidal" and self.hidden_size % 2:
            raise ValueError(f"hidden_size is odd ({self.hidden_size}), and sinusoidal positions need pairs")
        return self


class DataOptions(Section):
    """Files of texts: .txt with one text per line, .jsonl with an object per line, or .parquet."""

    train: tuple[Path, ...] = Field(min_length=1)
    validation: tuple[Path, ...] = Field(min_length=1)
    field: str = Field("text", description="Name of the text in JSON objects and Parquet columns.")
    shuffle_texts: Positive = Field(10_000, description="Texts in the shuffle buffer.")


class MaskingOptions(Section):
    """Masked language modeling (Devlin et al. 2019, section 3.1)."""

    probability: Annotated[float, Field(gt=0, lt=1)] = 0.15


class OptimizerOptions(Section):
    """AdamW (Loshchilov & Hutter 2019) with linear warm-up and cosine decay."""

    learning_rate: Annotated[float, Field(gt=0)] = 5e-4
    min_learning_rate_ratio: Fraction = 0.1
    warmup_steps: Annotated[int, Field(ge=0)] = 100
    weight_decay: Annotated[float, Field(ge=0)] = 0.01
    betas: tuple[Fraction, Fraction] = (0.9, 0.98)
    max_gradient_norm: Annotated[float, Field(gt=0)] = 1.0


class RunOptions(Section):
    """Length, batch size and bookkeeping of the run."""

    steps: Positive
    rows_per_batch: Positive = Field(16, description="Rows of max_input_tokens tokens in a forward pass.")
    batches_per_step: Positive = Field(1, description="Batches whose gradients are accumulated, over all processes.")
    seed: int = 1
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    checkpoint_steps: Positive = 500
    validation_steps: Positive = 500
    validation_batches: Positive = 20


class TrainConfig(Section):
    """A training run."""

    model: ModelOptions
    tokenizer: TokenizerOptions = TokenizerOptions()
    data: DataOptions
    masking: MaskingOptions = MaskingOptions()
    optimizer: OptimizerOptions = OptimizerOptions()
    run: RunOptions


def load_config(path: Path) -> TrainConfig:
    """Return the configuration in a TOML file, with the paths of data relative to it.

    Raises:
        TrainError: the file is missing or not TOML, or an option is unknown, missing or invalid.
    """
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise TrainError(f"{path}: cannot be read ({error.strerror}). Check the path.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise TrainError(f"{path}: not TOML ({error}). Correct it.") from None
    try:
        config = TrainConfig.model_validate(document)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        option = ".".join(map(str, first["loc"])) or "configuration"
        problem = (
            first["msg"].replace("Input should", "must").replace("Extra inputs are not permitted", "unknown option")
        )
        raise TrainError(f"{path}: {option}: {problem}.") from None
    files = {name: tuple(path.parent / file for file in getattr(config.data, name)) for name in ("train", "validation")}
    return config.model_copy(update={"data": config.data.model_copy(update=files)})
