"""The graph for a CUDA GPU: flat, in float16 as far as accuracy allows, written and measured without a GPU."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from model.accuracy import LEAST_COSINE, AccuracyError, Measure, as_tokens, choose_kept, pool_texts
from model.artifact import GraphRecord, GraphReport
from model.checkpoint import Checkpoint
from model.flat import HIDDEN, POOLED, FlatEncoder, flat_signature
from model.graphs import write_graph
from model.parity import Row, compare, pack_flat
from model.reference import open_reference
from model.tokenizer import Tokenizer

GRAPH, WEIGHTS = "cuda.onnx", "cuda.bin"
TOLERANCE = 2e-2
"""Largest difference of a token's vector from float32, as a share of the largest value; the cosine is the finer bar."""

Progress = Callable[[str], None]


def write_cuda(
    root: Path, checkpoint: Checkpoint, texts: Sequence[str], progress: Progress
) -> tuple[GraphRecord, GraphReport]:
    """Write the graph and its weights to `root`; choose its precision over `texts`.

    Raises `AccuracyError` when no choice reaches the bar.
    """
    encoder, pooling = checkpoint.encoder, checkpoint.text_vector.pooling
    tokens = as_tokens(texts, Tokenizer(checkpoint.tokenizer), checkpoint.max_tokens, encoder.config.types)
    progress(f"measuring float16 over {len(tokens)} texts")
    measure = Measure.of(encoder, pooling, tokens)
    accuracy = choose_kept(measure)
    progress(f"smallest cosine {accuracy.min_cosine:.6f}, in float32: {', '.join(accuracy.kept) or 'nothing'}")
    progress(f"exporting {GRAPH}")
    module = FlatEncoder(encoder, pooling, accuracy.kept).eval()
    signature = flat_signature(module)
    write_graph(module, root / GRAPH, WEIGHTS, signature)
    progress(f"running {GRAPH} with its attention as standard operators")
    session = open_reference(root / GRAPH, WEIGHTS)

    def run(output: str, row: list[Row]) -> NDArray[Any]:
        (found,) = session.run([output], pack_flat(row))
        return found  # type: ignore[no-any-return]

    def vectors(row: list[Row]) -> NDArray[Any]:
        return run(POOLED, row) if POOLED in signature.outputs else pool_texts(run(HIDDEN, row), row, pooling)

    parity = compare(encoder, lambda row: run(HIDDEN, row), checkpoint.max_tokens, TOLERANCE)
    cosine = measure.least_cosine(vectors)
    progress(f"smallest cosine {cosine:.6f}")
    if cosine < LEAST_COSINE:
        raise AccuracyError(f"{GRAPH}: the exported graph gives a cosine of {cosine:.6f}; nothing was written.")
    record = GraphRecord(
        file=GRAPH,
        weights=WEIGHTS,
        inputs=signature.inputs,
        outputs=signature.outputs,
        precision="float16",
    )
    measured = accuracy.model_copy(update={"min_cosine": min(cosine, accuracy.min_cosine)})
    return record, GraphReport(parity=parity, accuracy=measured)
