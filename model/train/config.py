"""Options of a training run, read from a TOML file. Each option is declared once, here."""

import difflib
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, Strict, ValidationError, model_validator
from pydantic.fields import FieldInfo

from model.artifact.console import EX_CANTCREAT, EX_CONFIG, EX_DATAERR, ReportedError, plain_message
from model.artifact.names import check_model_name

PositiveInt = Annotated[int, Field(gt=0, le=65_536)]
Positive = Annotated[int, Field(gt=0, lt=2**53)]
Fraction = Annotated[float, Field(ge=0, lt=1)]
File = Annotated[Path, Strict(False)]

DEFAULT_ROPE_THETA, DEFAULT_GLOBAL_EVERY = 10_000.0, 3


class TrainError(ReportedError):
    """An invalid configuration or a failed run. The message names the option or file."""

    status = EX_CONFIG


class DataError(TrainError):
    """Unusable training data."""

    status = EX_DATAERR


class WriteError(TrainError):
    """A file of the run could not be written."""

    status = EX_CANTCREAT


class Section(BaseModel):
    """Options that are fixed after reading. Unknown names and values of another type (true for 1) are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class TokenizerOptions(Section):
    """The tokenizer, trained on the training texts."""

    kind: Literal["wordpiece", "bpe"] = "wordpiece"
    vocab_size: Annotated[int, Field(ge=16, le=1_000_000)] = 8000
    lowercase: bool = True
    max_texts: Positive = Field(1_000_000, description="Number of texts to train on.")


class ModelOptions(Section):
    """The model to start from, or the sizes of a new encoder, named as in Hugging Face's config.json."""

    name: Annotated[str, AfterValidator(check_model_name)]
    license: str | None = None
    init: str | None = Field(None, description='"default", a directory of a published model, or a hub ID.')
    init_blocks: tuple[Annotated[int, Field(ge=0)], ...] = Field(
        (), strict=False, description="Blocks of init to keep; () is all."
    )
    hidden_size: PositiveInt = 256
    num_hidden_layers: Annotated[int, Field(gt=0, le=1000)] = 4
    num_attention_heads: PositiveInt = 4
    intermediate_size: PositiveInt = 1024
    max_input_tokens: Annotated[int, Field(ge=8, le=65_536)] = 128
    positions: Literal["learned", "sinusoidal", "rotary"] = "learned"
    rope_theta: Annotated[float, Field(gt=1, allow_inf_nan=False)] = DEFAULT_ROPE_THETA
    attention: Literal["bidirectional", "causal"] = "bidirectional"
    window: Annotated[int, Field(ge=0, le=65_536)] = Field(0, description="Distance in tokens; 0 is unlimited.")
    global_attn_every_n_layers: PositiveInt = DEFAULT_GLOBAL_EVERY
    block: Literal["post", "pre"] = "post"
    gated: bool = False

    @model_validator(mode="after")
    def _check_init(self) -> "ModelOptions":
        if self.init is None and self.init_blocks:
            raise ValueError("init_blocks is set without init. Remove it")
        if list(self.init_blocks) != sorted(set(self.init_blocks)):
            raise ValueError(f"init_blocks is not in ascending order ({list(self.init_blocks)}). Sort it")
        own = sorted(self.model_fields_set - {"name", "license", "init", "init_blocks", "max_input_tokens"})
        if self.init is not None and own:
            raise ValueError(f"{own[0]} is set together with init, which determines it. Remove it")
        return self

    @model_validator(mode="after")
    def _check_heads(self) -> "ModelOptions":
        if self.hidden_size % self.num_attention_heads:
            raise ValueError("hidden_size is not a multiple of num_attention_heads")
        if self.positions == "sinusoidal" and self.hidden_size % 2:
            raise ValueError(f"hidden_size is odd ({self.hidden_size}), and sinusoidal positions need pairs")
        head_size = self.hidden_size // self.num_attention_heads
        if self.positions == "rotary" and head_size % 2:
            raise ValueError(f"hidden_size / num_attention_heads is odd ({head_size}), and rotary positions need pairs")
        return self

    @model_validator(mode="after")
    def _check_parts(self) -> "ModelOptions":
        if self.rope_theta != DEFAULT_ROPE_THETA and self.positions != "rotary":
            raise ValueError('rope_theta is set without positions = "rotary". Remove it')
        if self.global_attn_every_n_layers != DEFAULT_GLOBAL_EVERY and not self.window:
            raise ValueError("global_attn_every_n_layers is set without window. Remove it")
        if self.window and self.global_attn_every_n_layers == 1:
            raise ValueError("window has no effect with global_attn_every_n_layers = 1. Remove one of them")
        return self


class DataOptions(Section):
    """Files of texts: .txt with one text per line, .jsonl with an object per line, or .parquet."""

    train: tuple[File, ...] = Field(min_length=1, strict=False)
    validation: tuple[File, ...] = Field(min_length=1, strict=False)
    field: str = Field("text", description="Name of the text in JSON objects and Parquet columns.")
    shuffle_texts: Positive = Field(10_000, description="Examples in the shuffle buffer.")


class MaskingOptions(Section):
    """Masked language modeling (Devlin et al. 2019, section 3.1)."""

    probability: Annotated[float, Field(gt=0, lt=1)] = 0.15
    mask_share: Annotated[float, Field(ge=0, le=1)] = 0.8
    random_share: Annotated[float, Field(ge=0, le=1)] = 0.1

    @model_validator(mode="after")
    def _check_shares(self) -> "MaskingOptions":
        if self.mask_share + self.random_share > 1:
            raise ValueError(f"mask_share + random_share is over 1 ({self.mask_share} + {self.random_share})")
        return self


class ContrastiveOptions(Section):
    """Contrastive learning on pairs."""

    temperature: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.05
    matryoshka_dimensions: tuple[Positive, ...] = Field((), strict=False)


class CrossEncoderOptions(Section):
    """A cross-encoder, learned from labeled pairs. It has no options."""


class DistillationOptions(Section):
    """Distillation of the embeddings of a teacher."""

    teacher: File = Field(description="Directory of an artifact.")


class OptimizerOptions(Section):
    """AdamW (Loshchilov & Hutter 2019) with linear warm-up and cosine decay."""

    learning_rate: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 5e-4
    min_learning_rate_ratio: Fraction = 0.1
    warmup_steps: Annotated[int, Field(ge=0)] = 100
    weight_decay: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.01
    betas: tuple[Fraction, Fraction] = Field((0.9, 0.98), strict=False)
    max_gradient_norm: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0


class RunOptions(Section):
    """Length, batch size and bookkeeping of the run."""

    steps: Positive
    rows_per_batch: PositiveInt = Field(16, description="Rows of max_input_tokens tokens in a forward pass.")
    batches_per_step: PositiveInt = Field(1, description="Batches whose gradients are accumulated, over all processes.")
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 1
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    checkpoint_steps: Positive = 500
    validation_steps: Positive = 500
    validation_batches: PositiveInt = 20


OBJECTIVES = ("contrastive", "cross_encoder", "distillation")


class TrainConfig(Section):
    """A training run: language modeling, unless another objective's table is present (`OBJECTIVES`)."""

    model: ModelOptions
    tokenizer: TokenizerOptions = TokenizerOptions()
    data: DataOptions
    masking: MaskingOptions = MaskingOptions()
    contrastive: ContrastiveOptions | None = None
    cross_encoder: CrossEncoderOptions | None = None
    distillation: DistillationOptions | None = None
    optimizer: OptimizerOptions = OptimizerOptions()
    run: RunOptions

    @model_validator(mode="after")
    def _check_tables(self) -> "TrainConfig":
        if self.optimizer.warmup_steps >= self.run.steps and "warmup_steps" in self.optimizer.model_fields_set:
            raise ValueError(f"optimizer.warmup_steps is not less than run.steps ({self.run.steps}). Reduce it")
        objectives = [name for name in OBJECTIVES if getattr(self, name) is not None]
        if len(objectives) > 1:
            raise ValueError(f"{' and '.join(objectives)} are set together. Keep one of the tables")
        if self.model.init is not None and not objectives:
            raise ValueError(f"model.init needs the table of an objective. Add one of {', '.join(OBJECTIVES)}")
        if objectives and "masking" in self.model_fields_set:
            raise ValueError(f"masking is set together with {objectives[0]}. Remove it")
        if self.model.attention == "causal" and "masking" in self.model_fields_set:
            raise ValueError('masking is set together with model.attention = "causal". Remove it')
        if self.model.init is not None and "tokenizer" in self.model_fields_set:
            raise ValueError("tokenizer is set together with model.init, which has a tokenizer. Remove it")
        pairs = next((name for name in objectives if name != "distillation"), None)
        if pairs is not None and "field" in self.data.model_fields_set:
            raise ValueError(f"data.field is set together with {pairs}, whose fields have fixed names. Remove it")
        if self.cross_encoder is not None and self.model.attention == "causal":
            raise ValueError(
                'cross_encoder is set together with model.attention = "causal", with which the first token, which the '
                "classifier reads, attends to itself only. Remove one of them"
            )
        return self


def load_config(path: Path) -> TrainConfig:
    """Return the configuration in a TOML file, with the paths of data relative to it. Raises TrainError."""
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise TrainError(f"{path}: cannot be read ({error.strerror}). Check the path.") from None
    except (ValueError, RecursionError) as error:
        raise TrainError(f"{path}: not TOML ({error}). Correct it.") from None
    try:
        config = TrainConfig.model_validate(document)
    except ValidationError as error:
        errors = error.errors(include_url=False)
        # A misspelled option is also reported as missing.
        first = next((item for item in errors if item["type"] == "extra_forbidden"), errors[0])
        option = ".".join(map(str, first["loc"])) or "configuration"
        problem = first["msg"]
        if first["type"] == "extra_forbidden" and (nearest := _nearest(first["loc"])):
            problem = f"unknown option. Did you mean {nearest}?"
            raise TrainError(f"{path}: {option}: {problem}") from None
        problem = plain_message(problem)
        if isinstance(first["input"], str | int | float) and option != "configuration":
            problem += f" (actual {first['input']!r})"
        raise TrainError(f"{path}: {option}: {problem}.") from None
    return _resolve_paths(config, path.parent.resolve())


def _nearest(location: Sequence[int | str]) -> str | None:
    """Return the option in the same table whose name is most similar to an unknown name."""
    *sections, name = map(str, location)
    options: Mapping[str, FieldInfo] = TrainConfig.model_fields
    for section in sections:
        annotation = options[section].annotation if section in options else None
        kinds = [kind for kind in (annotation, *get_args(annotation)) if isinstance(kind, type)]
        options = next((kind.model_fields for kind in kinds if issubclass(kind, BaseModel)), {})
    found = difflib.get_close_matches(name, options, 1)
    return ".".join((*sections, found[0])) if found else None


def _resolve_paths(config: TrainConfig, parent: Path) -> TrainConfig:
    """Resolve the configuration's paths relative to the directory of its file."""
    files = {name: tuple(parent / file for file in getattr(config.data, name)) for name in ("train", "validation")}
    changes: dict[str, Section] = {"data": config.data.model_copy(update=files)}
    if config.model.init is not None and (parent / config.model.init).is_dir():
        changes["model"] = config.model.model_copy(update={"init": str(parent / config.model.init)})
    if config.distillation is not None:
        changes["distillation"] = DistillationOptions(teacher=parent / config.distillation.teacher)
    return config.model_copy(update=changes)
