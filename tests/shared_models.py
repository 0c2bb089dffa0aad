"""Loaded models shared by all tests in a process, keyed by artifact content and backend options."""

from dataclasses import replace

from model.artifact.files import Artifact
from service.config import Settings
from service.engine.model_loader import LoadedModel
from service.model_options import ModelOption

OPTIONS = ("provider", "precision", "threads", "max_batch_tokens", "gpu_device", "gpu_memory_limit_bytes", "min_cosine")
"""Settings that `LoadedModel.load` reads, besides the directory and the pinned digest."""

KEPT = 16
"""Maximum number of models in memory: those used last."""

load_anew = LoadedModel.load
_loaded: dict[tuple[object, ...], LoadedModel] = {}


def load_shared(settings: Settings, option: ModelOption | None = None) -> LoadedModel:
    """Do what `LoadedModel.load` does, but only verify the files if a model with equal content is already loaded.

    This also opens the explain session, because tests may remove the directory that a model was loaded from.
    """
    option = option or settings.served_models[0]
    artifact = Artifact.open(option.directory, option.digest)
    key = (artifact.digest, *(getattr(settings, name) for name in OPTIONS))
    model = _loaded.pop(key, None)
    if model is None:
        model = load_anew(settings, option)
        if model.explain is not None:
            model.explain.probe()
    _loaded[key] = model
    if len(_loaded) > KEPT:
        del _loaded[next(iter(_loaded))]
    return replace(model, artifact=artifact)
