"""The served model and its limits, as `/v1/model` and GetModel return them."""

from collections.abc import Sequence
from dataclasses import fields
from typing import get_args

from attendant_client.types import (
    DataFileRecord,
    EvaluationRecord,
    LayerOutput,
    LayerStructure,
    Limits,
    ModelInfo,
    MultiVectorInfo,
    MultiVectorSide,
    Operation,
    Output,
    QueryExpansion,
    Role,
    SparseInfo,
    TrainingRecord,
)

from model.artifact.manifest import ExplainRecord, LayersRecord, Manifest, TensorRecord, split_pooling
from service import __version__
from service.config import Settings
from service.engine.model_loader import LoadedModel
from service.engine.sides import max_tokens, side_record


def limits_of(settings: Settings, max_input_tokens: int) -> Limits:
    """Return the limits for a model of `max_input_tokens`. All but two are copied from settings of the same name."""
    derived = {
        "max_input_characters": settings.max_characters_per_token * max_input_tokens,
        "max_request_bytes": settings.request_bytes(max_input_tokens),
    }
    names = [field.name for field in fields(Limits) if field.name not in derived]
    return Limits(**derived, **{name: getattr(settings, name) for name in names})


def describe_model(model: LoadedModel, limits: Limits, name: str, aliases: Sequence[str]) -> ModelInfo:
    """Return the public description of a model that is served under these names."""
    manifest, choice = model.artifact.manifest, model.backend.choice
    architecture, head = manifest.architecture, manifest.embedding
    last, poolings = architecture.num_hidden_layers, split_pooling(head.pooling)
    return ModelInfo(
        name=name,
        aliases=list(aliases),
        digest=f"sha256:{model.artifact.digest}",
        source=manifest.source,
        revision=manifest.revision,
        license=manifest.license,
        model_type=architecture.family,
        num_hidden_layers=architecture.num_hidden_layers,
        num_attention_heads=architecture.num_attention_heads,
        hidden_size=architecture.hidden_size,
        dimensions=head.dimensions,
        vocab_size=architecture.vocab_size,
        max_input_tokens=manifest.max_input_tokens,
        role_max_tokens={str(role): limit for role, limit in manifest.role_max_tokens.items()},
        truncation_side=manifest.truncation_side,
        pooling=poolings[0] if len(poolings) == 1 else None,
        poolings=poolings,
        normalize=head.normalize and head.truncate_dim is None,
        prompts=manifest.prompts,
        default_prompt_name=manifest.default_prompt_name,
        precision=choice.precision,
        provider=choice.provider,
        threads=choice.streams * choice.threads_per_stream,
        backend_reason=choice.reason,
        gpu_memory_bytes=model.backend.gpu_memory_bytes,
        length_buckets=list(model.backend.length_buckets),
        layers=[last] if model.explain is None else list(range(last + 1)),
        operations=operations_of(manifest),
        outputs=outputs_of(manifest),
        labels=[] if manifest.classification is None else list(manifest.classification.labels),
        token_labels=[] if manifest.token_classification is None else list(manifest.token_classification.labels),
        mask_token=mask_token(model),
        unknown_token_id=model.tokenizer.unknown_token_id,
        multi_vector=describe_multi_vector(model),
        sparse=None if manifest.sparse is None else SparseInfo(manifest.sparse.similarity, manifest.sparse.max_active),
        attention=architecture.attention,
        attention_kinds=list(manifest.attention_kinds),
        layer_outputs=layer_outputs_of(manifest),
        layer_structure=describe_structure(manifest),
        limits=limits,
        similarity=head.similarity,
        training=describe_training(manifest),
        evaluations=describe_evaluations(manifest),
        version=__version__,
    )


def mask_token(model: LoadedModel) -> str | None:
    """Return the mask token's text for a model with a masked-LM head."""
    head = model.artifact.manifest.masked_lm
    if head is None or head.mask_token_id is None:
        return None
    return model.tokenizer.vocabulary_texts([head.mask_token_id])[0]


def describe_multi_vector(model: LoadedModel) -> MultiVectorInfo | None:
    """Return the description of the token vectors; None for a model without them."""
    head, expansion = model.artifact.manifest.multi_vector, None
    if head is None:
        return None

    def describe_side(side: Role) -> MultiVectorSide:
        marker = side_record(head, side).marker
        text = None if marker is None else model.tokenizer.vocabulary_texts([marker])[0]
        return MultiVectorSide(max_tokens(model.artifact.manifest, side), text)

    if head.expansion is not None:
        (token,) = model.tokenizer.vocabulary_texts([head.expansion.token_id])
        expansion = QueryExpansion(token, head.expansion.length, head.expansion.attended)
    return MultiVectorInfo(head.dimensions, describe_side("query"), describe_side("document"), expansion)


def describe_training(manifest: Manifest) -> TrainingRecord | None:
    """Return the training record of a model that was trained with Attendant."""
    if (record := manifest.training) is None:
        return None
    values = record.model_dump()
    return TrainingRecord(**values | {"data": [DataFileRecord(**item) for item in values["data"]]})


def describe_evaluations(manifest: Manifest) -> list[EvaluationRecord]:
    """Return the evaluation records of a model."""
    return [EvaluationRecord(**record.model_dump()) for record in manifest.evaluations]


HEAD_OF_SIMILARITY = {"maxsim": "multi_vector", "sparse": "sparse"}
"""The head output that a similarity function needs. Other functions need embeddings."""
OPERATIONS: tuple[Operation, ...] = get_args(Operation)


def operations_of(manifest: Manifest) -> list[Operation]:
    """Return the operations that a model supports.

    Every model can rank, except a classifier with several labels: a cross-encoder ranks by its label's score, other
    models by vector similarity. A reranker with a template accepts only pairs.
    """
    head = manifest.classification
    missing: set[Operation] = set()
    if not isinstance(manifest.explain, ExplainRecord):
        missing |= {"attend", "compare"}
    if head is None or head.template is not None:
        missing.add("classify")
    elif len(head.labels) > 1:
        missing.add("rerank")
    if manifest.token_classification is None:
        missing.add("token_classify")
    if manifest.masked_lm is None:
        missing.add("fill_mask")
    return [operation for operation in OPERATIONS if operation not in missing]


def layer_outputs_of(manifest: Manifest) -> list[LayerOutput]:
    """Return the steps inside layers that a model supports; artifacts of earlier versions lack graphs for some."""
    names = {*manifest.step_names}
    if names:
        names.add("input")
        if "angles" in names or manifest.position_table is not None:
            names.add("position")
    return [name for name in get_args(LayerOutput) if name in names]


def describe_structure(manifest: Manifest) -> LayerStructure | None:
    """Return the structure of a model's layers; artifacts of earlier versions do not record it."""
    layers = manifest.layers
    if not isinstance(layers, LayersRecord) or layers.structure is None:
        return None
    values = layers.structure.model_dump(exclude={"position_table"})
    return LayerStructure(norm=layers.norm, **values | {"positions": list(values["positions"])})


def outputs_of(manifest: Manifest) -> list[Output]:
    """Return the outputs of encode that a model supports."""
    missing: set[Output] = set()
    if not isinstance(manifest.static, TensorRecord):
        missing.add("static")
    if manifest.sparse is None:
        missing.add("sparse")
    if manifest.multi_vector is None:
        missing.add("multi_vector")
    return [output for output in get_args(Output) if output not in missing]
