"""Loaded models that all tests of a process share, keyed by the artifact's content and the options of its backend."""

from dataclasses import replace

from model.artifact import Artifact
from service.config import Settings
from service.engine.model_loader import LoadedModel
from service.model_options import ModelOption

OPTIONS = ("provider", "precision", "threads", "max_batch_tokens", "gpu_device", "gpu_memory_limit_bytes")
"""The settings that `LoadedModel.load` reads, apart from the directory and the pinned digest."""

load_anew = LoadedModel.load
_loaded: dict[tuple[object, ...], LoadedModel] = {}


def load_shared(settings: Settings, option: ModelOption | None = None) -> LoadedModel:
    """Do what `LoadedModel.load` does, but verify the files only if a model of equal content is loaded already.

    The explain session is opened too: tests may remove the directory that a model was loaded from.
    """
    option = option or settings.served_models[0]
    artifact = Artifact.open(option.directory, option.digest)
    key = (artifact.digest, *(getattr(settings, name) for name in OPTIONS))
    if key not in _loaded:
        _loaded[key] = load_anew(settings, option)
        _loaded[key].explain.probe()
    return replace(_loaded[key], artifact=artifact)
