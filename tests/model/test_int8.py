"""The graph in int8: written, measured, and refused where it is not accurate."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

from model import int8 as int8_module
from model.accuracy import AccuracyError
from model.artifact import WEIGHTS, Artifact, GraphRecord
from model.checkpoint import load_checkpoint
from model.export import Variants, export, export_graph
from model.int8 import LEAST_COSINE, write_int8
from model.parity import pack
from tests.model.conftest import SENTENCES
from tests.model.flat_texts import FAMILIES, random_texts

Publish = Callable[[str], Path]


def write(source: Path, root: Path, said: list[str] | None = None) -> GraphRecord:
    root.mkdir(parents=True)
    checkpoint = load_checkpoint(source)
    export_graph(checkpoint.encoder, root / "fast.onnx")
    return write_int8(root, checkpoint, SENTENCES, ([] if said is None else said).append)


def nodes(graph: Path, kind: str) -> list[onnx.NodeProto]:
    return [node for node in onnx.load(graph, load_external_data=False).graph.node if node.op_type == kind]


def test_an_artifact_holds_the_graph(published: Path, exported: Path, tmp_path: Path) -> None:
    """Beside what it held anyway, byte for byte, with a smaller weights file of its own."""
    export(str(published), tmp_path / "out", revision=None, name=None, progress=lambda step: None,
           variants=Variants(("int8",), SENTENCES))  # fmt: skip
    artifact, without = Artifact.open(tmp_path / "out"), Artifact.open(exported)
    assert set(artifact.manifest.files) - set(without.manifest.files) == {"int8.onnx", "int8.bin"}
    for name in without.manifest.files:
        assert artifact.read(name) == (exported / name).read_bytes()
    record = artifact.manifest.graphs["int8"]
    assert (record.precision, record.weights, record.outputs) == ("int8", "int8.bin", ("hidden",))
    assert record.inputs == artifact.manifest.graphs["fast"].inputs
    assert artifact.manifest.files["int8.bin"].size < artifact.manifest.files[WEIGHTS].size


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_can_be_narrowed(publish: Publish, family: str, tmp_path: Path) -> None:
    """Its linear maps are in int8 but for those that the record names, and its vectors stay near."""
    source = publish(family)
    encoder = load_checkpoint(source).encoder
    maps = [name for name, part in encoder.named_modules() if isinstance(part, torch.nn.Linear)]
    record = write(source, tmp_path / "root")
    assert record.accuracy is not None
    assert record.accuracy.texts == len(SENTENCES)
    assert LEAST_COSINE <= record.accuracy.min_cosine < 1
    narrow = [node for node in nodes(tmp_path / "root" / "int8.onnx", "MatMul")
              if all(name.endswith("DequantizeLinear_Output") for name in node.input)]  # fmt: skip
    assert set(record.accuracy.kept) <= set(maps)
    assert 0 < len(narrow) == len(maps) - len(record.accuracy.kept)
    session = onnxruntime.InferenceSession(tmp_path / "root" / "int8.onnx", providers=["CPUExecutionProvider"])
    texts = random_texts(encoder, (7, 1, 33))
    with torch.inference_mode():
        alone = [encoder(**{name: torch.from_numpy(values) for name, values in text.items()})[0] for text in texts]
    (hidden,) = session.run(None, pack(texts))
    expected = torch.cat(alone).numpy()
    cosines = (hidden[0] * expected).sum(1) / np.linalg.norm(hidden[0], axis=1) / np.linalg.norm(expected, axis=1)
    assert np.median(cosines) > 0.99  # one token may lie outside of what seven texts calibrate
    assert cosines.min() < 1


def test_a_text_is_the_same_in_any_company(published: Path, tmp_path: Path) -> None:
    """Ranges are fixed: what dynamic quantisation could not promise."""
    write(published, tmp_path / "root")
    session = onnxruntime.InferenceSession(tmp_path / "root" / "int8.onnx", providers=["CPUExecutionProvider"])
    texts = random_texts(load_checkpoint(published).encoder, (9, 30, 4))
    (packed,) = session.run(None, pack(texts))
    alone = np.concatenate([session.run(None, pack([text]))[0][0] for text in texts])
    np.testing.assert_allclose(packed[0], alone, atol=1e-4)


def test_two_exports_are_equal_byte_for_byte(published: Path, tmp_path: Path) -> None:
    """The same texts, the same choice, the same files."""
    first, second = (write(published, tmp_path / name / "root") for name in ("a", "b"))
    assert first == second
    for name in ("int8.onnx", "int8.bin"):
        assert (tmp_path / "a" / "root" / name).read_bytes() == (tmp_path / "b" / "root" / name).read_bytes()


def test_the_most_harmful_maps_stay_in_float32(
    published: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As few as reach the bar; every step says how far it is."""
    said: list[str] = []
    easy = write(published, tmp_path / "easy" / "root", said)
    assert easy.accuracy is not None
    bar = (1 + easy.accuracy.min_cosine) / 2
    monkeypatch.setattr(int8_module, "LEAST_COSINE", bar)
    hard = write(published, tmp_path / "hard" / "root", said)
    assert hard.accuracy is not None
    assert hard.accuracy.min_cosine >= bar
    assert len(easy.accuracy.kept) < len(hard.accuracy.kept) < 12
    assert any("of 12 maps in int8" in step for step in said)


def test_a_model_that_is_not_for_int8_is_refused(
    published: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is written, and the message says what was wanted."""
    monkeypatch.setattr(int8_module, "LEAST_COSINE", 1.1)
    with pytest.raises(AccuracyError, match=r"no choice of maps keeps the smallest cosine at 1\.1"):
        export(str(published), tmp_path / "out", revision=None, name=None, progress=lambda step: None,
               variants=Variants(("int8",), SENTENCES))  # fmt: skip
    assert list(tmp_path.iterdir()) == []
