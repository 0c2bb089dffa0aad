"""Graphs: external and shared weights, no metadata, and lossless storage in 16 bits."""

from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
import onnx_ir
import onnxruntime
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from model.artifact.files import WEIGHTS, Artifact, ArtifactError
from model.artifact.manifest import LayersRecord
from model.artifact.tokenizer import TokenizerInput
from model.export import graphs as onnx_graph
from model.export.export import Variants, export
from model.export.graphs import COMPACT_TYPES, GraphSignature, compact_weights, is_lossless, write_graph
from service.config import Settings
from service.engine.backends.cpu import detect_cpu
from service.engine.model_loader import LoadedModel
from service.engine.tasks import EncodeTask
from tests.manifests import static_record
from tests.shared_models import load_anew


class Scaled(nn.Module):
    """A module with one weight."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((37,), factor, dtype=torch.float32))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight


SIGNATURE = GraphSignature({"x": torch.zeros(5, 37)}, {"x": {0: "N"}}, ("y",))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a directory with a writable parent, as in an export."""
    (tmp_path / "root").mkdir()
    return tmp_path / "root"


def test_graph_has_external_weights_and_dynamic_axes(root: Path) -> None:
    write_graph(Scaled(3), root / "a.onnx", "a.bin", SIGNATURE)
    assert sorted(path.name for path in root.iterdir()) == ["a.bin", "a.onnx"]
    graph = onnx.load(root / "a.onnx").graph
    assert [(entry.name, entry.type.tensor_type.shape.dim[0].dim_param) for entry in graph.input] == [("x", "N")]
    assert [entry.name for entry in graph.output] == ["y"]


def test_graphs_share_equal_weights_and_reject_different_weights(root: Path) -> None:
    for name in ("a.onnx", "b.onnx"):
        write_graph(Scaled(3), root / name, "shared.bin", SIGNATURE)
    before = (root / "shared.bin").read_bytes()
    with pytest.raises(ArtifactError, match=r"c\.onnx: weights differ"):
        write_graph(Scaled(4), root / "c.onnx", "shared.bin", SIGNATURE)
    assert sorted(path.name for path in root.iterdir()) == ["a.onnx", "b.onnx", "shared.bin"]
    assert (root / "shared.bin").read_bytes() == before


def test_graph_contains_no_metadata(root: Path) -> None:
    write_graph(Scaled(3), root / "a.onnx", "a.bin", SIGNATURE)
    graph = onnx.load(root / "a.onnx")
    assert not graph.metadata_props
    assert all(not node.metadata_props and not node.doc_string for node in graph.graph.node)
    assert b"test_onnx_graph" not in (root / "a.onnx").read_bytes()


# Lossless storage of weights in 16 bits: which values qualify, and that nothing else changes.

Floats = NDArray[np.float32]
BFLOAT16 = onnx_ir.DataType.BFLOAT16.numpy()
Dtype = Literal["bfloat16", "float16"]
MODES = ("cpu float32", "openvino float32", "openvino auto", *(["openvino int8"] if detect_cpu().vnni else []))
TEXTS = ("The river bank flows past the old mill.", "Money in the bank grows slowly.", "Seven small boats wait.")


def bits(value: int) -> Floats:
    return np.array([[value]], np.uint32).view(np.float32)


@given(st.integers(0, 2**32 - 1))
@example(0x80000000)  # -0.0
@example(0x7F7FFFFF)  # the largest float32
@example(0x00000001)  # the smallest subnormal
@example(0x38800000)  # the smallest normal float16
@example(0x33800000)  # the smallest subnormal float16
@example(0x477FE000)  # the largest float16
def test_value_is_lossless_if_and_only_if_all_its_bits_survive(value: int) -> None:
    values = bits(value)
    for dtype in (BFLOAT16, np.dtype(np.float16)):
        with np.errstate(over="ignore"):
            back = values.astype(dtype).astype(np.float32)
        assert is_lossless(values, dtype) == (back.view(np.uint32) == values.view(np.uint32)).all()
    if not np.isnan(values).any():
        assert is_lossless(values, BFLOAT16) == (value & 0xFFFF == 0)


@pytest.mark.parametrize("place", [0, 2**20 - 1, 2**20, 3 * 2**20 - 1])
def test_one_value_that_needs_float32_is_found(place: int) -> None:
    values = np.ones((3, 2**20), np.float32)
    assert is_lossless(values, BFLOAT16)
    values.reshape(-1)[place] = np.float32(1 + 2**-20)
    assert not is_lossless(values, BFLOAT16)


def make_model(weight: Floats, bias: Floats) -> onnx_ir.Model:
    """Return `x @ weight + bias`."""
    tensors = [onnx_ir.tensor(weight, name="weight"), onnx_ir.tensor(bias, name="bias")]
    initializers = [onnx_ir.val(tensor.name, const_value=tensor) for tensor in tensors]
    x = onnx_ir.val("x", onnx_ir.DataType.FLOAT, ["T", weight.shape[0]])
    product = onnx_ir.node("MatMul", [x, initializers[0]])
    total = onnx_ir.node("Add", [product.outputs[0], initializers[1]])
    total.outputs[0].name = "y"
    graph = onnx_ir.Graph(
        [x], total.outputs, nodes=[product, total], initializers=initializers, opset_imports={"": 20}, name="linear"
    )
    return onnx_ir.Model(graph, ir_version=10)


@pytest.mark.parametrize("dtype", COMPACT_TYPES)
def test_matrix_is_stored_in_16_bits_and_computed_in_float32(dtype: onnx_ir.DataType) -> None:
    generator = np.random.default_rng(1)
    weight = generator.standard_normal((5, 3)).astype(dtype.numpy()).astype(np.float32)
    bias, x = np.ones(3, np.float32), generator.standard_normal((2, 5)).astype(np.float32)
    model = make_model(weight, bias)
    (expected,) = run(model, x)
    compact_weights(model)
    stored = {name: value.dtype for name, value in model.graph.initializers.items()}
    assert stored == {f"weight.{dtype.name.lower()}": dtype, "bias": onnx_ir.DataType.FLOAT}
    np.testing.assert_array_equal(run(model, x)[0], expected)


@pytest.mark.parametrize("dtype", COMPACT_TYPES)
def test_only_the_rows_of_a_table_are_cast(dtype: onnx_ir.DataType) -> None:
    values = np.random.default_rng(1).standard_normal((7, 3)).astype(dtype.numpy()).astype(np.float32)
    table = onnx_ir.val("table", const_value=onnx_ir.tensor(values, name="table"))
    inputs = [onnx_ir.val(name, onnx_ir.DataType.INT64, ["T"]) for name in ("x", "other")]
    rows = [onnx_ir.node("Gather", [table, ids], {"axis": 0}) for ids in inputs]
    total = onnx_ir.node("Add", [node.outputs[0] for node in rows])
    for node, name in zip((*rows, total), ("first", "second", "y"), strict=True):
        node.outputs[0].name = name
    graph = onnx_ir.Graph(
        inputs, total.outputs, nodes=[*rows, total], initializers=[table], opset_imports={"": 20}, name="lookup"
    )
    model = onnx_ir.Model(graph, ir_version=10)
    compact_weights(model)
    assert [node.op_type for node in graph] == ["Gather", "Cast", "Gather", "Cast", "Add"]
    assert {name: value.dtype for name, value in graph.initializers.items()} == {f"table.{dtype.name.lower()}": dtype}
    session = onnxruntime.InferenceSession(onnx_ir.to_proto(model).SerializeToString())
    ids = np.array([6, 0]), np.array([1, 6])
    (result,) = session.run(None, dict(zip(("x", "other"), ids, strict=True)))
    np.testing.assert_array_equal(result, values[ids[0]] + values[ids[1]])


def test_matrix_with_other_values_is_unchanged() -> None:
    model = make_model(np.full((5, 3), 0.1, np.float32), np.ones(3, np.float32))
    compact_weights(model)
    assert [node.op_type for node in model.graph] == ["MatMul", "Add"]


def run(model: onnx_ir.Model, x: Floats) -> Any:
    session = onnxruntime.InferenceSession(onnx_ir.to_proto(model).SerializeToString())
    return session.run(None, {"x": x})


@pytest.fixture(
    scope="module", params=[pytest.param(dtype, marks=pytest.mark.slow) for dtype in ("bfloat16", "float16")]
)
def stored(
    request: pytest.FixtureRequest, published: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Dtype, Artifact, Artifact]:
    """A model published in 16 bits: the dtype, its artifact, and an artifact that stores the same values in float32."""
    root = tmp_path_factory.mktemp(request.param)
    source = root / "tiny-bert"
    source.mkdir()
    for name in ("config.json", "tokenizer.json"):
        (source / name).write_bytes((published / name).read_bytes())
    tensors = load_file(published / "model.safetensors")
    save_file({name: tensor.to(getattr(torch, request.param)) for name, tensor in tensors.items()},
              source / "model.safetensors", metadata={"format": "pt"})  # fmt: skip

    def write(name: str) -> Artifact:
        export(str(source), root / name,
               variants=Variants(("int8",)))  # fmt: skip
        return Artifact.open(root / name)

    compact = write("compact")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(onnx_graph, "compact_weights", lambda model: None)
        return request.param, compact, write("float32")


def test_weights_take_half_the_space(stored: tuple[Dtype, Artifact, Artifact]) -> None:
    dtype, compact, float32 = stored
    sizes = [artifact.manifest.files[WEIGHTS].size for artifact in (compact, float32)]
    assert 0.5 < sizes[0] / sizes[1] < 0.6, "vectors stay in float32"
    assert static_record(compact.manifest).dtype == dtype
    assert isinstance(compact.manifest.layers, LayersRecord)
    for layer in compact.manifest.layers.layers:
        assert layer.weights["attention.query.weight"].dtype == layer.output.dtype == dtype
        assert layer.weights["attention.query.bias"].dtype == layer.norm.dtype == "float32"


def test_mapped_tensors_have_the_same_values(stored: tuple[Dtype, Artifact, Artifact]) -> None:
    _, compact, float32 = stored
    tables = [artifact.map(static_record(artifact.manifest)) for artifact in (compact, float32)]
    assert tables[0].shape == tables[1].shape
    for index in (slice(None), [3, 200, 3], 7):
        rows, expected = tables[0][index], tables[1][index]
        assert rows.dtype == np.float32
        np.testing.assert_array_equal(rows, expected)
    for (name, tensor), (other, expected_tensor) in zip(
        compact.manifest.tensors(), float32.manifest.tensors(), strict=True
    ):
        assert name == other
        np.testing.assert_array_equal(compact.map(tensor)[:], float32.map(expected_tensor)[:])


def test_int8_weights_are_the_same(stored: tuple[Dtype, Artifact, Artifact]) -> None:
    """The embedding table stays in 16 bits."""
    _, compact, float32 = stored
    arrays = [
        {
            name: value.const_value.numpy()
            for name, value in onnx_ir.load(artifact.root / "int8.onnx").graph.initializers.items()
            if value.const_value is not None
        }
        for artifact in (compact, float32)
    ]
    int8 = [{name: array for name, array in tensors.items() if array.dtype == np.int8} for tensors in arrays]
    assert int8[0].keys() == int8[1].keys() != set()
    for name, array in int8[0].items():
        np.testing.assert_array_equal(array, int8[1][name])
    assert compact.manifest.files["int8.bin"].size < 0.8 * float32.manifest.files["int8.bin"].size


@pytest.mark.parametrize("mode", MODES)
def test_vectors_are_the_same_on_every_backend(stored: tuple[Dtype, Artifact, Artifact], mode: str) -> None:
    provider, precision = mode.split()
    _, compact, float32 = stored
    models = [
        load_anew(Settings(model_dir=artifact.root, provider=provider, precision=precision))
        for artifact in (compact, float32)
    ]
    vectors, expected = (hidden_states(model) for model in models)
    assert np.isfinite(expected).all()
    np.testing.assert_array_equal(vectors, expected)


def hidden_states(model: LoadedModel) -> Floats:
    tokens = [
        item.truncate(model.artifact.manifest.max_input_tokens, "right")
        for item in model.tokenizer.encode([TokenizerInput(text) for text in TEXTS])
    ]
    results = model.backend.run([EncodeTask(item, None, hidden=True) for item in tokens])
    return np.concatenate([result.hidden[0] for result in results if result.hidden is not None])
