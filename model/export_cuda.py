"""Export of the varlen graph for CUDA, in float16 as far as accuracy allows; written and measured without a GPU."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from model.checkpoint import Checkpoint
from model.checkpoint_files import CheckpointError
from model.manifest import GraphRecord
from model.measurements import GraphReport
from model.mixed_precision import (
    MIN_COSINE,
    AccuracyError,
    AccuracyTest,
    choose_float32_parts,
    pool_sequences,
    tokenize_texts,
)
from model.onnx_graph import describe_graph, write_graph
from model.parity import Inputs, compare_outputs, pack_varlen
from model.reference_attention import open_reference_session
from model.tokenizer import Tokenizer
from model.varlen import LAST_HIDDEN_STATE, SENTENCE_EMBEDDING, VarlenEncoder, unsupported_part, varlen_signature

GRAPH, WEIGHTS = "cuda.onnx", "cuda.bin"
TOLERANCE = 2e-2
"""Maximum relative difference of a token vector, as in parity.py. The limit of the cosine similarity is stricter."""

Progress = Callable[[str], None]


def check_cuda(checkpoint: Checkpoint) -> None:
    """Raise `CheckpointError` for an encoder with parts that the graph does not have."""
    if part := unsupported_part(checkpoint.encoder.config):
        raise CheckpointError(f"--variant cuda: not available for models with {part}. Export without it.")
    vectors = checkpoint.multi_vector
    if vectors is not None and vectors.expansion is not None and not vectors.expansion.attended:
        raise CheckpointError(
            "--variant cuda: not available for models with query expansion without attention. Export without it."
        )


def write_cuda(
    root: Path, checkpoint: Checkpoint, eval_texts: Sequence[str], progress: Progress
) -> tuple[GraphRecord, GraphReport]:
    """Write the graph and its weights to `root`; `eval_texts` determine which parts stay in float32.

    Raises:
        AccuracyError: the embeddings differ too much from float32.
    """
    encoder, pooling = checkpoint.encoder, checkpoint.embedding_config.pooling
    tokenizer = Tokenizer(checkpoint.tokenizer)
    sequences = tokenize_texts(eval_texts, tokenizer, checkpoint.max_input_tokens, encoder.config.type_vocab_size)
    progress(f"measuring float16 accuracy over {len(sequences)} texts")
    test = AccuracyTest.from_sequences(encoder, pooling, sequences)
    accuracy = choose_float32_parts(test)
    progress(f"smallest cosine {accuracy.min_cosine:.6f}, in float32: {', '.join(accuracy.float32_parts) or 'none'}")
    progress(f"exporting {GRAPH}")
    module = VarlenEncoder(encoder, pooling, accuracy.float32_parts).eval()
    signature = varlen_signature(module)
    write_graph(module, root / GRAPH, WEIGHTS, signature)
    progress(f"running {GRAPH} with reference attention")
    session = open_reference_session(root / GRAPH, WEIGHTS)

    def run(output: str, batch: list[Inputs]) -> NDArray[Any]:
        (result,) = session.run([output], pack_varlen(batch))
        return result  # type: ignore[no-any-return]

    def embed(batch: list[Inputs]) -> NDArray[Any]:
        if SENTENCE_EMBEDDING in signature.outputs:
            return run(SENTENCE_EMBEDDING, batch)
        return pool_sequences(run(LAST_HIDDEN_STATE, batch), batch, pooling)

    parity = compare_outputs(
        encoder, lambda batch: run(LAST_HIDDEN_STATE, batch), checkpoint.max_input_tokens, TOLERANCE
    )
    cosine = test.min_cosine(embed)
    progress(f"smallest cosine {cosine:.6f}")
    if cosine < MIN_COSINE:
        raise AccuracyError(
            f"{GRAPH}: accuracy too low (smallest cosine {cosine:.6f}, limit {MIN_COSINE}). Report this as a bug."
        )
    measured = accuracy.model_copy(update={"min_cosine": min(cosine, accuracy.min_cosine)})
    return describe_graph(root / GRAPH, WEIGHTS, "float16"), GraphReport(parity=parity, accuracy=measured)
