"""What is served and within which limits, as `/v1/model` and GetModel tell."""

from service import __version__
from service.config import Settings
from service.engine.model_loader import LoadedModel
from service.engine.schema.encode import Limits, ModelInfo


def limits_of(settings: Settings, max_tokens: int) -> Limits:
    """The limits in force for a model of `max_tokens`."""
    return Limits(
        max_inputs=settings.max_inputs,
        max_input_characters=settings.max_characters_per_token * max_tokens,
        max_request_bytes=settings.max_request_bytes,
        max_response_bytes=settings.max_response_bytes,
        max_queue_tokens=settings.max_queue_tokens,
        max_explain_queue_tokens=settings.max_explain_queue_tokens,
        max_deadline_ms=settings.max_deadline_ms,
        header_timeout_ms=settings.header_timeout_ms,
        body_timeout_ms=settings.body_timeout_ms,
    )


def model_info_of(model: LoadedModel, limits: Limits, settings: Settings) -> ModelInfo:
    """All that callers may know of a model as it is served."""
    manifest, runtime = model.artifact.manifest, model.runtime
    return ModelInfo(
        name=manifest.name,
        aliases=[name.strip() for name in settings.model_aliases.split(",") if name.strip()],
        digest=f"sha256:{model.artifact.digest}",
        source=manifest.source,
        revision=manifest.revision,
        licence=manifest.licence,
        family=manifest.family,
        layer_count=manifest.layers,
        head_count=manifest.heads,
        width=manifest.width,
        output_width=manifest.output_width,
        vocabulary_size=manifest.vocabulary,
        max_tokens=manifest.max_tokens,
        pooling=manifest.pooling,
        normalize=manifest.normalize,
        prompts=manifest.prompts,
        precision=runtime.provider.precision,
        provider=runtime.provider.name,
        row_lengths=list(runtime.row_lengths.lengths),
        layers=list(range(manifest.layers + 1)),
        attention_kinds=list(manifest.attention_kinds),
        limits=limits,
        version=__version__,
    )
