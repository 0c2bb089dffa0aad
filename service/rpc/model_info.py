"""The response message of GetModel."""

from dataclasses import asdict

from model.manifest import POOLINGS
from service.engine.schema.encode import ModelInfo
from service.pb import encoder_pb2 as pb
from service.rpc.similarity import SIMILARITIES

POOLING_MODES = (None, *POOLINGS)


def model_response(info: ModelInfo) -> pb.GetModelResponse:
    """Return the served model as a message."""
    return pb.GetModelResponse(
        name=info.name,
        aliases=info.aliases,
        digest=info.digest,
        source=info.source,
        revision=info.revision or "",
        license=info.license or "",
        model_type=info.model_type,
        num_hidden_layers=info.num_hidden_layers,
        num_attention_heads=info.num_attention_heads,
        hidden_size=info.hidden_size,
        dimensions=info.dimensions,
        vocab_size=info.vocab_size,
        max_input_tokens=info.max_input_tokens,
        pooling=POOLING_MODES.index(info.pooling),  # type: ignore[arg-type]  # the numbers are those of the enum
        normalize=info.normalize,
        prompts=info.prompts,
        default_prompt_name=info.default_prompt_name,
        precision=info.precision,
        provider=info.provider,
        threads=info.threads,
        backend_reason=info.backend_reason,
        length_buckets=info.length_buckets,
        layers=info.layers,
        attention_kinds=info.attention_kinds,
        limits=pb.Limits(**asdict(info.limits)),
        version=info.version,
        similarity=SIMILARITIES.index(info.similarity),  # type: ignore[arg-type]  # likewise
        attention=info.attention,
        training=None if info.training is None else pb.TrainingRecord(**info.training.model_dump()),
        evaluations=[pb.EvaluationRecord(**record.model_dump()) for record in info.evaluations],
    )
