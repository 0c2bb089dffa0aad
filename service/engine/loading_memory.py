"""Memory needed to load a model, so that a server rejects a model that would get it killed."""

from model.artifact.manifest import Manifest, TensorRecord
from model.artifact.memory import available_memory
from service.config import ConfigError

WEIGHT_COPIES = 3
"""Bytes of resident memory per byte of weights: 2.9 for an idle server with a BERT-base-sized model."""


def weight_bytes(manifest: Manifest) -> int:
    """Return the size of the weights in float32, in bytes."""
    size = sum(manifest.files[name].size for name in manifest.graphs[manifest.main_graph].weights)
    if isinstance(manifest.static, TensorRecord) and manifest.static.dtype != "float32":
        size *= 2  # backends compute in float32
    return size


def check_memory(manifest: Manifest) -> None:
    """Raise `ConfigError` if there is too little memory to load a model. Accept if the available amount is unknown."""
    needed, available = WEIGHT_COPIES * weight_bytes(manifest), available_memory()
    if available is not None and needed > available:
        raise ConfigError(
            f"not enough memory to load it beside the models in use (estimated {needed:,} bytes, available "
            f"{available:,}). Free memory, or unload another model first."
        )
