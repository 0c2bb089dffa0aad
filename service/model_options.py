"""The models that the options select, with their names."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from model.artifact.names import MAX_CHARACTERS, NAME_FORMAT, is_model_name

DIGEST = re.compile(r"(?:sha256:)?[0-9a-fA-F]{64}")


class ModelOptionError(ValueError):
    """An invalid list of models or aliases. The message has a remedy and no option name."""


@dataclass(frozen=True)
class ModelOption:
    """A model to serve: the directory of its artifact, its required digest, if any, and its names.

    `name` None selects the name in the manifest.
    """

    directory: Path
    digest: str | None = None
    name: str | None = None
    aliases: tuple[str, ...] = ()


def parse_models(value: str) -> list[ModelOption]:
    """Return the models of a list `name=directory` or `name=directory@sha256:digest`; raises `ModelOptionError`."""
    models: dict[str, ModelOption] = {}
    for item in _items(value):
        name, separator, location = (part.strip() for part in item.partition("="))
        if not separator or not name or not location:
            raise ModelOptionError(f'"{item}" is not name=directory. Separate models by commas.')
        _check_name(name)
        if name in models:
            raise ModelOptionError(f'"{name}" is set twice. Rename one.')
        directory, marker, digest = location.rpartition("@sha256:")
        if not marker:
            models[name] = ModelOption(Path(location), None, name)
        elif directory and DIGEST.fullmatch(digest):
            models[name] = ModelOption(Path(directory), digest, name)
        else:
            raise ModelOptionError(
                f'the digest of "{name}" is not sha256: and 64 hexadecimal digits. Copy it from attendant-model verify.'
            )
    return list(models.values())


def parse_aliases(value: str, names: Iterable[str | None]) -> dict[str | None, tuple[str, ...]]:
    """Return the aliases of each of these models from a list `alias` or `alias=name`; raises `ModelOptionError`.

    An alias without a name belongs to the first model.
    """
    names = list(names)
    aliases: dict[str | None, tuple[str, ...]] = dict.fromkeys(names, ())
    used = {name for name in names if name is not None}
    for item in _items(value):
        alias, separator, target = (part.strip() for part in item.partition("="))
        _check_name(alias)
        name = target if separator else names[0]
        if name not in aliases:
            raise ModelOptionError(f'"{target}" in "{item}" is not a name in ATTENDANT_MODELS. Add it there.')
        if alias in used:
            raise ModelOptionError(f'"{alias}" is the name of a model or of another alias too. Rename one.')
        used.add(alias)
        aliases[name] += (alias,)
    return aliases


def _check_name(name: str) -> None:
    if not is_model_name(name):
        raise ModelOptionError(f"a name {NAME_FORMAT} ({name[:MAX_CHARACTERS]!r}). Choose another name.")


def _items(value: str) -> list[str]:
    return [item.strip() for item in value.split(",") if item.strip()]
