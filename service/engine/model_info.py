"""What is served and within which limits, as `/v1/model` and GetModel tell."""

from service import __version__
from service.config import Settings
from service.engine.model_loader import LoadedModel
from service.engine.schema.encode import Limits, ModelInfo


def limits_of(settings: Settings, max_tokens: int) -> Limits:
    """The limits in force for a model of `max_tokens`."""
    return Limits(
        max_inputs=settings.max_inputs,
        max_spans_per_input=settings.max_spans_per_input,
        max_spans_per_request=settings.max_spans_per_request,
        max_input_characters=settings.max_characters_per_token * max_tokens,
        max_request_bytes=settings.max_request_bytes,
        max_response_bytes=settings.max_response_bytes,
        max_queue_ms=settings.max_queue_ms,
        max_explain_queue_ms=settings.max_explain_queue_ms,
        max_queue_tokens=settings.max_queue_tokens,
        max_explain_queue_tokens=settings.max_explain_queue_tokens,
        max_deadline_ms=settings.max_deadline_ms,
        header_timeout_ms=settings.header_timeout_ms,
        body_timeout_ms=settings.body_timeout_ms,
    )


def model_info_of(model: LoadedModel, limits: Limits, settings: Settings) -> ModelInfo:
    """All that callers may know of a model as it is served."""
    manifest, choice = model.artifact.manifest, model.backend.choice
    return ModelInfo(
        name=manifest.name,
        aliases=[name.strip() for name in settings.model_aliases.split(",") if name.strip()],
        digest=f"sha256:{model.artifact.digest}",
        source=manifest.source,
        revision=manifest.revision,
        licence=manifest.license,
        family=manifest.model_type,
        layer_count=manifest.num_hidden_layers,
        head_count=manifest.num_attention_heads,
        width=manifest.hidden_size,
        output_width=manifest.dimensions,
        vocabulary_size=manifest.vocab_size,
        max_tokens=manifest.max_input_tokens,
        pooling=manifest.pooling,
        normalize=manifest.normalize,
        prompts=manifest.prompts,
        precision=choice.precision,
        provider=choice.provider,
        row_lengths=list(model.backend.length_buckets),
        layers=list(range(manifest.num_hidden_layers + 1)),
        attention_kinds=list(manifest.attention_kinds),
        limits=limits,
        version=__version__,
    )
