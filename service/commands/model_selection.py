"""Selects a command's model from the options."""

from model.artifact import Artifact
from model.console import EX_CONFIG
from service.commands.arguments import CommandError
from service.config import Settings
from service.model_options import ModelOption


def select_model(settings: Settings, name: str | None) -> Settings:
    """Return settings with a single model, selected by name or alias; None selects the first one.

    Its directory is absolute. Raises `ArtifactError`, `ConfigError` or `CommandError`.
    """
    options = settings.served_models
    option = options[0] if name is None else next((item for item in options if name in _names(item)), None)
    if option is None:
        names = ", ".join(f'"{_names(item)[0]}"' for item in options)
        raise CommandError(f'--model: not found ("{name}"). Use {names}, or set ATTENDANT_MODELS.', EX_CONFIG)
    changes = {
        "models": "",
        "model_aliases": "",
        "model_dir": option.directory.resolve(),
        "model_digest": option.digest,
    }
    return settings.model_copy(update=changes)


def _names(option: ModelOption) -> tuple[str, ...]:
    return (option.name or Artifact.open(option.directory).manifest.name, *option.aliases)
