"""The file that `ATTENDANT_MODELS_FILE` names: models to serve, which may change while the server runs."""

import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from model.artifact.console import plain_message
from model.artifact.names import NAME_FORMAT, check_model_name
from service.config import ConfigError, Settings, read_option_file
from service.errors import echo
from service.model_options import DIGEST, ModelOption

OPTION = "ATTENDANT_MODELS_FILE"
DIGEST_FORMAT = "must be sha256: and 64 hexadecimal digits"

Name = Annotated[str, AfterValidator(check_model_name)]
Digest = Annotated[str, StringConstraints(pattern=rf"^(?:{DIGEST.pattern})$")]


class ModelEntry(BaseModel):
    """A model to serve.

    Attributes:
        name: its served name; None selects the name in the manifest, and is not allowed in the file.
        source: the directory of an artifact, or a source that is exported first: see `prepare_artifact`.
        digest: the required digest of the artifact, if any.
        aliases: other names.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str | None = None
    source: str = Field(min_length=1)
    digest: Digest | None = None
    aliases: tuple[Name, ...] = ()

    @classmethod
    def of(cls, option: ModelOption) -> "ModelEntry":
        """Return the entry of a model that other options select."""
        return cls.model_construct(
            name=option.name, source=str(option.directory), digest=option.digest, aliases=option.aliases
        )

    def option(self, directory: Path) -> ModelOption:
        """Return the option for the artifact in this directory."""
        return ModelOption(directory, self.digest, self.name, self.aliases)


class NamedEntry(ModelEntry):
    """An entry of the file."""

    name: Name


class ModelsFile(BaseModel):
    """The contents of the file. The first model serves requests that name no model."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    models: tuple[NamedEntry, ...] = Field(min_length=1)


def configured_models(settings: Settings) -> Sequence[ModelEntry]:
    """Return the models that the options select; the first one is the default. Raises `ConfigError`."""
    if settings.models_file is None:
        return [ModelEntry.of(option) for option in settings.served_models]
    return parse_models_file(settings.models_file, read_option_file(OPTION, settings.models_file))


def parse_models_file(path: Path, content: bytes) -> Sequence[ModelEntry]:
    """Return the models of a file. Raises `ConfigError` that names the file, the key and the problem."""
    try:
        parsed = ModelsFile.model_validate(tomllib.loads(content.decode()))
    except UnicodeDecodeError:
        raise ConfigError(f"{OPTION}: {path} is not UTF-8. Check the file.") from None
    except ValidationError as invalid:
        raise ConfigError(f"{OPTION}: {path}: {_describe(invalid)}. See docs/models-file.md.") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{OPTION}: {path} is not TOML ({error}). Correct it.") from None
    counts = Counter(_names(parsed.models))
    repeated = next((name for name, count in counts.items() if count > 1), None)
    if repeated is not None:
        raise ConfigError(f'{OPTION}: {path}: "{repeated}" is a name or alias of two models. Rename one.')
    return parsed.models


def _names(entries: Sequence[NamedEntry]) -> Iterator[str]:
    for entry in entries:
        yield from (entry.name, *entry.aliases)


def _describe(invalid: ValidationError) -> str:
    """Return the path of the first invalid key, such as `models[1].digest`, and the problem."""
    error = invalid.errors(include_url=False)[0]
    path = ""
    for part in error["loc"]:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else part
    table = NamedEntry if len(error["loc"]) > 1 else ModelsFile
    problem = {
        "missing": "missing",
        "extra_forbidden": f"unknown key (known: {', '.join(table.model_fields)})",
        "tuple_type": "must be a list",
        "string_pattern_mismatch": f"{DIGEST_FORMAT} ({echo(str(error['input']))})",
        "value_error": f"{NAME_FORMAT} ({echo(str(error['input']))})",
    }.get(error["type"], plain_message(error["msg"]))
    return f"{path}: {problem}"
