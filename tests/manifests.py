"""Changes of manifests, for tests."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from model.artifact.manifest import ExplainRecord, Kind, Manifest, TensorRecord
from model.source.sentence_transformers import resolve_roles
from service.engine.model_loader import LoadedModel


def with_prompts(manifest: Manifest, prompts: Mapping[str, str], default: str | None = None) -> Manifest:
    """Return a manifest with these prompts."""
    update = {"prompts": prompts, "default_prompt_name": default, "roles": resolve_roles(prompts)}
    return manifest.model_copy(update=update)


def with_head(manifest: Manifest, **fields: Any) -> Manifest:
    """Return a manifest with other values in the embedding head."""
    return manifest.model_copy(update={"heads": (manifest.embedding.model_copy(update=fields),)})


def with_architecture(manifest: Manifest, **fields: Any) -> Manifest:
    """Return a manifest with other values in the architecture."""
    return manifest.model_copy(update={"architecture": manifest.architecture.model_copy(update=fields)})


def with_kinds(manifest: Manifest, *kinds: Kind) -> Manifest:
    """Return a manifest with these kinds of attention map."""
    return manifest.model_copy(update={"explain": ExplainRecord(graph="explain", kinds=kinds)})


def static_record(manifest: Manifest) -> TensorRecord:
    """Return the record of the embedding table."""
    assert isinstance(manifest.static, TensorRecord)
    return manifest.static


def with_manifest(model: LoadedModel, manifest: Manifest) -> LoadedModel:
    """Return a loaded model with another manifest."""
    return replace(model, artifact=replace(model.artifact, manifest=manifest))
