"""The message of a served model."""

from dataclasses import asdict

from model.artifact.manifest import POOLINGS
from service.engine.schema.model import ModelInfo, MultiVectorInfo, MultiVectorSide, SparseInfo
from service.pb import encoder_pb2 as pb
from service.rpc.codec import enum_label

POOLING_MODES = (None, *POOLINGS)


def model_message(info: ModelInfo) -> pb.Model:
    """Return the served model as a message."""
    return pb.Model(
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
        role_max_tokens={str(role): limit for role, limit in info.role_max_tokens.items()},
        truncation_side=enum_label("TRUNCATION", info.truncation_side),
        pooling=enum_label("POOLING", info.pooling),
        normalize=info.normalize,
        prompts=info.prompts,
        default_prompt_name=info.default_prompt_name,
        precision=enum_label("PRECISION", info.precision),
        provider=enum_label("PROVIDER", info.provider),
        threads=info.threads,
        backend_reason=info.backend_reason,
        length_buckets=info.length_buckets,
        layers=info.layers,
        attention_kinds=[enum_label("ATTENTION_KIND", kind) for kind in info.attention_kinds],
        limits=pb.Limits(**asdict(info.limits)),
        version=info.version,
        similarity=enum_label("SIMILARITY_FUNCTION", info.similarity),
        operations=[enum_label("OPERATION", operation) for operation in info.operations],
        labels=info.labels,
        token_labels=info.token_labels,
        mask_token=info.mask_token or "",
        multi_vector=None if info.multi_vector is None else _multi_vector(info.multi_vector),
        sparse=None if info.sparse is None else _sparse(info.sparse),
        outputs=[enum_label("OUTPUT", output) for output in info.outputs],
        attention=enum_label("ATTENTION", info.attention),
        training=None if info.training is None else pb.TrainingRecord(**info.training.model_dump()),
        evaluations=[pb.EvaluationRecord(**record.model_dump()) for record in info.evaluations],
    )


def _multi_vector(info: MultiVectorInfo) -> pb.MultiVectorInfo:
    expansion = info.query_expansion
    return pb.MultiVectorInfo(
        dimensions=info.dimensions,
        query=_side(info.query),
        document=_side(info.document),
        query_expansion=None if expansion is None else pb.QueryExpansion(**asdict(expansion)),
    )


def _sparse(info: SparseInfo) -> pb.SparseInfo:
    return pb.SparseInfo(similarity=enum_label("SIMILARITY_FUNCTION", info.similarity), max_active=info.max_active)


def _side(side: MultiVectorSide) -> pb.MultiVectorSide:
    return pb.MultiVectorSide(max_input_tokens=side.max_input_tokens, marker=side.marker or "")
