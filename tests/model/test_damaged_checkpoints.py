"""Published files with an absurd value: an export reads them or ends with one line, and takes no absurd memory."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from model.__main__ import main
from model.artifact.console import EX_DATAERR
from tests.damaged_json import ABSURD, DEEP, nest, paths, replace
from tests.model.conftest import Publish

FILES = ("config.json", "tokenizer.json", "tokenizer_config.json", "modules.json", "1_Pooling/config.json",
         "config_sentence_transformers.json", "sentence_bert_config.json", "model.safetensors")  # fmt: skip
MODULES = [
    {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
    {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
]


class ReadError(BaseException):
    """Stops an export that has read all files."""


@pytest.fixture
def source(publish: Publish, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    def stop(*arguments: Any) -> None:
        raise ReadError

    monkeypatch.setattr("model.export.export._write", stop)
    root = tmp_path / "source"
    shutil.copytree(publish("bert"), root)
    (root / "1_Pooling").mkdir(exist_ok=True)
    for name, document in (
        ("modules.json", MODULES),
        ("1_Pooling/config.json", {"word_embedding_dimension": 24, "pooling_mode_mean_tokens": True}),
        ("config_sentence_transformers.json", {"prompts": {"query": "q: "}, "default_prompt_name": None}),
        ("sentence_bert_config.json", {"max_seq_length": 16, "do_lower_case": False}),
        ("tokenizer_config.json", {"model_max_length": 16, "tokenizer_class": "BertTokenizer", "do_lower_case": True}),
    ):
        (root / name).write_text(json.dumps(document))
    return root


def read(root: Path, name: str) -> Any:
    body = (root / name).read_bytes()
    return json.loads(body[8 : 8 + int.from_bytes(body[:8], "little")] if name.endswith("safetensors") else body)


def write(root: Path, name: str, text: str) -> None:
    body = text.encode()
    if name.endswith("safetensors"):
        before = (root / name).read_bytes()
        body = len(body).to_bytes(8, "little") + body + before[8 + int.from_bytes(before[:8], "little") :]
    (root / name).write_bytes(body)


def export(root: Path) -> int:
    try:
        return main(["export", str(root), "-o", str(root.parent / "out")])
    except ReadError:
        return 0


def test_source_is_exported_without_a_change(source: Path) -> None:
    assert export(source) == 0


@pytest.mark.parametrize("name", FILES)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_absurd_value_is_read_or_one_line(
    source: Path, capsys: pytest.CaptureFixture[str], name: str, data: st.DataObject
) -> None:
    document, before = read(source, name), (source / name).read_bytes()
    path = data.draw(st.sampled_from([*paths(document)]))
    write(source, name, replace(document, path, data.draw(st.sampled_from(ABSURD))))
    status = export(source)
    (source / name).write_bytes(before)
    lines = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("[")]
    assert (status, len(lines)) in ((0, 0), (EX_DATAERR, 1)), lines


@pytest.mark.parametrize("name", FILES)
def test_deep_nesting_is_one_line(source: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    document = read(source, name)
    for text in (DEEP, nest(document, next(paths(document)))):
        write(source, name, text)
        assert export(source) == EX_DATAERR
        (line,) = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("[")]
        assert line.startswith("attendant-model: ")
        assert Path(name).name in line
