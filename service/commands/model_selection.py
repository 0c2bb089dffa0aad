"""Selects a command's model from the options."""

from pathlib import Path

from model.artifact.console import EX_CONFIG
from model.artifact.files import Artifact
from service.commands.arguments import CommandError
from service.config import Settings
from service.model_cache import cache_directory, prepare_artifact
from service.models_file import ModelEntry, configured_models


def select_model(settings: Settings, name: str | None) -> Settings:
    """Return settings with a single model, selected by name or alias; None selects the first one.

    Its directory is absolute. Raises `ArtifactError`, `ConfigError` or `CommandError`.
    """
    entries = configured_models(settings)
    entry = entries[0] if name is None else next((item for item in entries if name in _names(item)), None)
    if entry is None:
        names = ", ".join(f'"{_names(item)[0]}"' for item in entries)
        raise CommandError(f'--model: not found ("{name}"). Use {names}, or set ATTENDANT_MODELS.', EX_CONFIG)
    directory = Path(entry.source)
    if settings.models_file is not None:
        directory = prepare_artifact(entry.source, cache_directory(settings.cache_dir))
    changes = {
        "models": "",
        "models_file": None,
        "model_aliases": "",
        "model_dir": directory.resolve(),
        "model_digest": entry.digest,
    }
    return settings.model_copy(update=changes)


def _names(entry: ModelEntry) -> tuple[str, ...]:
    return (entry.name or Artifact.open(Path(entry.source)).manifest.name, *entry.aliases)
