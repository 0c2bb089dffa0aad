"""Artifacts with right digests and wrong contents: absurd values, NaN in a weight, tokens beyond the table."""

import json
import re
import resource
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
import tokenizers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import numpy_helper

from model.artifact.files import (
    GOLDEN,
    MANIFEST,
    MANIFEST_DIGEST,
    REPORT,
    TOKENIZER,
    Artifact,
    ArtifactError,
    describe_file,
)
from model.artifact.manifest import TensorRecord
from model.artifact.tokenizer import Tokenizer
from service.config import ConfigError, Settings
from service.engine.weight_check import EXPONENTS, PIECE_BYTES, check_tokens, check_weights
from tests.conftest import run_python
from tests.damaged_json import ABSURD, DEEP, nest, paths, replace
from tests.labels import CLASSIFIER, export_classifier
from tests.model.colbert_cases import COLBERT_CASES
from tests.model.logit_score_cases import LOGIT_SCORE
from tests.model.model_files import copy_artifact, rewrite_manifest
from tests.model.retriever_cases import BGE_M3
from tests.retrievers import INFERENCE_FREE, SPLADE, export_retriever
from tests.shared_models import load_anew

FILES = (MANIFEST, TOKENIZER, GOLDEN)
MEMORY = 4 * 2**30


@pytest.fixture
def limited_memory() -> Iterator[None]:
    """Let an allocation of absurd size fail in this process instead of ending another one."""
    before = resource.getrlimit(resource.RLIMIT_DATA)
    used = int(re.search(r"VmData:\s+(\d+)", Path("/proc/self/status").read_text())[1]) * 1024  # type: ignore[index]
    resource.setrlimit(resource.RLIMIT_DATA, (used + MEMORY, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_DATA, before)


def write(root: Path, name: str, text: str) -> None:
    """Replace a file, with its digest."""
    (root / name).write_text(text)
    if name == TOKENIZER:
        record = describe_file(root / name).model_dump()
        rewrite_manifest(root, lambda manifest: manifest["files"].update({name: record}))
    if name == MANIFEST:
        (root / MANIFEST_DIGEST).write_text(describe_file(root / name).sha256 + "\n")


def check_file(root: Path, name: str, text: str) -> None:
    """Load an artifact with another file, which works or raises one line."""
    before = {path: path.read_bytes() for path in root.iterdir()}
    write(root, name, text)
    message = str(root)
    try:
        load_anew(Settings(model_dir=root, provider="cpu"))
    except (ArtifactError, ConfigError) as error:
        message = str(error)
    finally:
        for path, content in before.items():
            path.write_bytes(content)
    assert message.isprintable()
    assert str(root) in message


@pytest.mark.usefixtures("limited_memory")
@pytest.mark.parametrize("name", FILES)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_absurd_value_is_loaded_or_one_line(
    tiny_artifact: Path, tmp_path: Path, name: str, data: st.DataObject
) -> None:
    root = tmp_path / "artifact"
    if not root.exists():
        copy_artifact(tiny_artifact, tmp_path)
    document = json.loads((root / name).read_text())
    path = data.draw(st.sampled_from([*paths(document)]))
    check_file(root, name, replace(document, path, data.draw(st.sampled_from(ABSURD))))


@pytest.mark.parametrize("name", FILES)
def test_deep_nesting_is_one_line(tiny_artifact: Path, tmp_path: Path, name: str) -> None:
    root = copy_artifact(tiny_artifact, tmp_path)
    document: dict[str, Any] = json.loads((root / name).read_text())
    for text in (DEEP, *(nest(document, (key,)) for key in document), '{"format_version": 7, "source": ' + DEEP + "}"):
        write(root, name, text)
        with pytest.raises(ArtifactError) as raised:
            load_anew(Settings(model_dir=root, provider="cpu"))
        assert str(raised.value).isprintable()
        assert name in str(raised.value) or name == TOKENIZER


def test_commands_end_with_one_line(tiny_artifact: Path, tmp_path: Path) -> None:
    root = copy_artifact(tiny_artifact, tmp_path)
    write(root, MANIFEST, replace(json.loads((root / MANIFEST).read_text()), ("static", "offset"), 2**62))
    write(root, REPORT, DEEP)
    for command in (["-m", "service", "serve"], ["-m", "model", "verify", str(root)]):
        ended = run_python(*command, model_dir=root, rest_port=0, grpc_port=0, admin_port=0)
        assert ended.returncode == 78
        (line,) = [line for line in ended.stderr.splitlines() if MANIFEST in line]
        assert "Traceback" not in ended.stderr
        assert "Export again." in line


# Artifacts whose files have the right digests, but NaN in a weight, or a token without a row in the table.

COLBERT = next(iter(COLBERT_CASES))
VALUES = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


def update_digest(root: Path, name: str) -> None:
    record = describe_file(root / name).model_dump()
    rewrite_manifest(root, lambda manifest: manifest["files"].update({name: record}))


def tensors_of(root: Path) -> dict[str, TensorRecord]:
    return dict(Artifact.open(root).manifest.tensors())


def write_value(root: Path, record: TensorRecord, value: float) -> None:
    """Write a value at the end of a tensor."""
    stored = np.array(value, VALUES[record.dtype]).tobytes()
    with (root / record.file).open("r+b") as file:
        file.seek(record.offset + (int(np.prod(record.shape)) - 1) * len(stored))
        file.write(stored)
    update_digest(root, record.file)


@pytest.mark.parametrize(
    ("kind", "field", "value"),
    [
        (BGE_M3, "static", np.nan),  # the row of a token that no golden text contains
        (SPLADE, "masked_lm.decoder", np.inf),
        (SPLADE, "sparse.bias", -np.inf),
        (INFERENCE_FREE, "sparse.query_weights", np.nan),
    ],
)
def test_nan_in_a_weight_file_is_not_served(kind: str, field: str, value: float, tmp_path: Path) -> None:
    root = copy_artifact(export_retriever(kind), tmp_path)
    record = tensors_of(root)[field]
    write_value(root, record, value)
    with pytest.raises(ArtifactError, match=rf"{record.file}: tensor \S+ contains NaN or infinity\. Export again\."):
        load_anew(Settings(model_dir=root, provider="cpu"))


def test_every_tensor_of_the_manifest_is_checked(tiny_artifact: Path, tmp_path: Path) -> None:
    """Also the weights of attention maps, which the first request for a map reads."""
    check_weights(Artifact.open(tiny_artifact))
    for number, (field, record) in enumerate(tensors_of(tiny_artifact).items()):
        (tmp_path / str(number)).mkdir()
        root = copy_artifact(tiny_artifact, tmp_path / str(number))
        write_value(root, record, np.nan)
        with pytest.raises(ArtifactError, match=record.file):
            check_weights(Artifact.open(root))
        assert field


def test_nan_in_the_graph_of_a_head_is_not_served(tmp_path: Path) -> None:
    root = copy_artifact(export_classifier(CLASSIFIER), tmp_path)
    path = root / "classification.onnx"
    graph = onnx.load(path)
    bias = next(tensor for tensor in graph.graph.initializer if "bias" in tensor.name)
    bias.CopyFrom(numpy_helper.from_array(np.full(tuple(bias.dims), np.nan, np.float32), bias.name))
    onnx.save(graph, path)
    update_digest(root, path.name)
    with pytest.raises(ArtifactError, match=rf"classification\.onnx: tensor {bias.name} contains NaN or infinity"):
        check_weights(Artifact.open(root))


@pytest.mark.parametrize("dtype", VALUES)
def test_largest_finite_values_are_accepted_in_every_type(dtype: Any, tiny_artifact: Path, tmp_path: Path) -> None:
    """A file of several pieces, with values whose sum overflows."""
    root = copy_artifact(tiny_artifact, tmp_path)
    _, exponent = EXPONENTS[dtype]
    largest = np.array(exponent - 1, EXPONENTS[dtype][0]).view(VALUES[dtype]).item()
    values = np.full(PIECE_BYTES, largest, VALUES[dtype])
    (root / "other.bin").write_bytes(values.tobytes())
    record = TensorRecord(file="other.bin", offset=0, shape=(PIECE_BYTES,), dtype=dtype)
    rewrite_manifest(root, lambda manifest: manifest.update(static=record.model_dump()))
    update_digest(root, "other.bin")
    check_weights(Artifact.open(root))
    write_value(root, record, np.inf)
    with pytest.raises(ArtifactError, match=r"other\.bin: tensor static contains"):
        check_weights(Artifact.open(root))


def check(root: Path) -> None:
    artifact = Artifact.open(root)
    in_text = artifact.manifest.special_tokens_in_text
    check_tokens(artifact, Tokenizer(artifact.read(TOKENIZER), special_tokens_in_text=in_text))


@pytest.mark.parametrize(
    ("kind", "path", "number"),
    [
        (COLBERT, "multi_vector query marker", -1),
        (COLBERT, "multi_vector document marker", 99_999),
        (COLBERT, "multi_vector expansion token_id", 99_999),
        (SPLADE, "masked_lm mask_token_id", -1),
        (LOGIT_SCORE, "classification template prefix_ids 0", 99_999),
        (LOGIT_SCORE, "classification template suffix_ids 0", -1),
    ],
)
def test_inserted_token_without_a_row_is_not_served(kind: str, path: str, number: int, tmp_path: Path) -> None:
    source = export_retriever(kind)
    check(source)
    root = copy_artifact(source, tmp_path)
    head, *parts, last = path.split()

    def change(manifest: dict[str, Any]) -> None:
        place: Any = next(item for item in manifest["heads"] if item["type"] == head)
        for part in parts:
            place = place[part]
        place[int(last) if last.isdecimal() else last] = number

    rewrite_manifest(root, change)
    field = ".".join(part for part in path.split() if not part.isdecimal())
    with pytest.raises(ArtifactError, match=rf"token '.*' of {field} is not in the embedding table \(id {number}, "):
        check(root)


def test_manifest_with_a_smaller_vocabulary_is_not_served(tiny_artifact: Path, tmp_path: Path) -> None:
    root = copy_artifact(tiny_artifact, tmp_path)
    size = Artifact.open(root).manifest.architecture.vocab_size
    rewrite_manifest(root, lambda manifest: manifest["architecture"].update(vocab_size=size - 1))
    limit = rf"\(id {size - 1}, limit {size - 2}\)\. Export again\."
    with pytest.raises(ArtifactError, match=rf"tokenizer\.json: token '.+' is not in the embedding table {limit}"):
        load_anew(Settings(model_dir=root))


def add_token(definition: dict[str, Any], number: int, *, special: bool = True) -> None:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    definition["added_tokens"].append({"id": number, "content": "[IMG]", "special": special, **flags})


def rename_unknown(definition: dict[str, Any], number: int) -> None:
    definition["model"]["unk_token"] = "[IMG]"
    definition["model"]["vocab"]["[IMG]"] = number
    add_token(definition, number)


def insert_in_pairs(definition: dict[str, Any], number: int) -> None:
    """Insert the token only between the texts of pairs."""
    add_token(definition, number)
    processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [IMG] $B [SEP]",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3), ("[IMG]", number)],
    )  # fmt: skip
    definition["post_processor"] = json.loads(processor.__getstate__())


def read_third_type(definition: dict[str, Any], number: int) -> None:
    processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A:2 [SEP]", pair="[CLS] $A $B:1 [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    definition["post_processor"] = json.loads(processor.__getstate__())


def rewrite_tokenizer(root: Path, change: Callable[[dict[str, Any], int], None], number: int) -> None:
    definition = json.loads((root / TOKENIZER).read_text())
    change(definition, number)
    (root / TOKENIZER).write_text(json.dumps(definition))


PRODUCED = {
    "an added token that texts contain": lambda values, number: add_token(values, number, special=False),
    "the unknown token": rename_unknown,
    "a special token of pairs": insert_in_pairs,
}


@pytest.mark.parametrize("change", PRODUCED.values(), ids=PRODUCED)
def test_produced_token_without_a_row_is_not_served(
    change: Callable[[dict[str, Any], int], None], tiny_artifact: Path, tmp_path: Path
) -> None:
    root = copy_artifact(tiny_artifact, tmp_path)
    size = Artifact.open(root).manifest.architecture.vocab_size
    rewrite_tokenizer(root, change, size)
    update_digest(root, TOKENIZER)
    with pytest.raises(
        ArtifactError, match=rf"tokenizer\.json: token '\[IMG\]' is not .*\(id {size}, limit {size - 1}"
    ):
        check(root)


def test_token_type_without_a_row_is_not_served(tiny_artifact: Path, tmp_path: Path) -> None:
    root = copy_artifact(tiny_artifact, tmp_path)
    rewrite_tokenizer(root, read_third_type, 0)
    update_digest(root, TOKENIZER)
    with pytest.raises(ArtifactError, match=r"tokenizer\.json: token type is not .*\(id 2, limit 1\)"):
        check(root)


def test_special_token_that_no_text_contains_may_lie_beyond_the_table(tiny_artifact: Path, tmp_path: Path) -> None:
    root = copy_artifact(tiny_artifact, tmp_path)
    rewrite_tokenizer(root, add_token, Artifact.open(root).manifest.architecture.vocab_size)
    update_digest(root, TOKENIZER)
    check(root)
    rewrite_manifest(root, lambda manifest: manifest.update(special_tokens_in_text=True))
    with pytest.raises(ArtifactError, match=r"token '\[IMG\]' is not in the embedding table"):
        check(root)
