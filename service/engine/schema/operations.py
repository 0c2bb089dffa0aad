"""The operations of the engine and the outputs of encode, and which of them a model supports."""

from typing import Literal, get_args

from model.artifact.manifest import ExplainRecord, Manifest, TensorRecord

Operation = Literal[
    "encode", "attend", "compare", "similarity", "rerank", "classify", "token_classify", "fill_mask", "tokenize"
]  # fmt: skip
Output = Literal["pooled", "tokens", "words", "spans", "static", "sparse", "multi_vector"]
HEAD_OF_SIMILARITY = {"maxsim": "multi_vector", "sparse": "sparse"}
"""The output that a similarity function of a head needs. The others need embeddings."""
OPERATIONS: tuple[Operation, ...] = get_args(Operation)


def operations_of(manifest: Manifest) -> list[Operation]:
    """Return the operations that a model supports.

    A classifier of several labels does not rank. Every other model does: a cross-encoder by the score of its label, the
    others by the similarity of their vectors. A reranker with a template reads pairs alone.
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
