"""attendant-model: its commands, and the lines that describe a model."""

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import tokenizers
import torch
import transformers
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer

from model.__main__ import _parser, main
from model.artifact.files import Artifact
from model.artifact.manifest import ASSUMED, TokenClassificationHead
from model.artifact.tokenizer import Tokenizer
from model.checkpoint import load_checkpoint
from model.export.description import describe_heads, describe_settings, warn_about_assumptions
from model.export.export import check_tokenizer
from model.source.sentence_transformers import DenseLayer, EmbeddingConfig
from service.config import Settings
from service.engine.model_loader import LoadedModel
from tests.model.conftest import Publish
from tests.model.family_cases import HIDDEN_SIZE
from tests.model.model_files import read_json, write_json
from tests.model.tiny_tokenizers import SENTENCES
from tests.model_records import add_records
from tests.service.conftest import open_harness

CHOSEN_SETTINGS = [
    "pooling: cls (--pooling)",
    "normalization: yes (--normalize)",
    "maximum length: 31 tokens (--max-input-tokens)",
    "prompts: none",
    "dense layers: none",
]


def error_line(capsys: pytest.CaptureFixture[str]) -> str:
    """Return the only stderr line that is not progress output; stdout must be empty."""
    out, err = capsys.readouterr()
    lines = [line for line in err.splitlines() if not re.match(r"\[ *\d+\.\d s\] ", line)]
    assert (out, len(lines)) == ("", 1), err
    return lines[0]


async def test_export_serves_embeddings_of_chosen_settings(
    published: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A directory with config.json, tokenizer.json and weights does not contain the model's embedding settings."""
    out = tmp_path / "out"
    options = ["--pooling", "cls", "--normalize", "--max-input-tokens", "31", "--name", "mine"]
    assert main(["export", str(published), "-o", str(out), *options]) == 0
    stdout, err = capsys.readouterr()
    lines = err.splitlines()
    assert stdout == ""
    assert all(re.match(r"\[ *\d+\.\d s\] \w", line) for line in lines)
    assert "estimate: 0 M parameters; the export takes about 0.5 GiB of memory" in lines[2]
    assert [line.split("] ", 1)[1] for line in lines[3:8]] == CHOSEN_SETTINGS
    assert "warning" not in err
    assert lines[-1].endswith(f"wrote mine to {out}")
    assert main(["verify", str(out)]) == 0
    assert [line.strip() for line in capsys.readouterr().out.splitlines()[1:6]] == CHOSEN_SETTINGS
    texts = [*SENTENCES, " ".join(SENTENCES)]
    async with open_harness(LoadedModel.load(Settings(model_dir=out, precision="float32"))) as harness:
        response = await harness.post("/v1/encode", {"inputs": texts, "truncation": "right"})
    served = [result["pooled"] for result in response.raise_for_status().json()["results"]]
    expected = sentence_transformers_model(published, tmp_path).encode(texts, show_progress_bar=False)
    np.testing.assert_allclose(served, expected, atol=1e-5)


def sentence_transformers_model(published: Path, directory: Path) -> SentenceTransformer:
    """Return the oracle: cls pooling and normalization, at most 31 tokens."""
    bare = shutil.copytree(published, directory / "bare")
    names = {f"{name}_token": f"[{name.upper()}]" for name in ("unk", "cls", "sep", "pad", "mask")}
    tokenizer = transformers.PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_file=str(bare / "tokenizer.json"), **names
    )
    tokenizer.save_pretrained(bare)
    modules = [Transformer(str(bare), max_seq_length=31), Pooling(HIDDEN_SIZE, "cls"), Normalize()]
    return SentenceTransformer(modules=modules, device="cpu")


def test_verify_prints_digest_and_parity(exported: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(exported)]) == 0
    out, err = capsys.readouterr()
    first, *settings, fast, explain, layer, steps, golden = out.splitlines()
    assert golden == "  golden.json: 32 texts, embedding"
    assert first == f"{exported}: tiny-bert, 6 files, sha256:{Artifact.open(exported).digest}"
    parity = r"max difference from torch \d\.\d\de-0\d \(limit \de-04, 8 batches\)"
    assert re.fullmatch(rf"  graph fast, float32: {parity}\n  graph explain, float32: {parity}", f"{fast}\n{explain}")
    assert layer.startswith("  graph layer_0, float32: max difference from torch ")
    assert steps.startswith("  graph steps_0, float32: max difference from torch ")
    assert settings == [
        "  pooling: mean (assumed)",
        "  normalization: no (assumed)",
        "  maximum length: 41 tokens (config.json)",
        "  prompts: none",
        "  dense layers: none",
    ]
    assert err == ""


def test_verify_prints_training_and_evaluations(artifact: Path, capsys: pytest.CaptureFixture[str]) -> None:
    add_records(artifact)
    assert main(["verify", str(artifact)]) == 0
    assert capsys.readouterr().out.splitlines()[11:] == [
        "  training: masked language modeling, 2,000 steps, 32,768,000 tokens of corpus.txt (52,428,800 bytes), "
        "notes.jsonl (1,234 bytes), from all-MiniLM-L6-v2, teacher all-mpnet-base-v2, bfloat16, seed 7, "
        "validation loss 2.7183",
        "  evaluation similarity, pairs.tsv: spearman 0.812 [0.790, 0.833]",
        "  evaluation retrieval, queries.jsonl: mrr 0.500",
    ]


def export_cuda(published: Path, directory: Path) -> int:
    """Export to `out` with the texts in the file `texts`."""
    arguments = ["--variant", "cuda", "--eval-texts", str(directory / "texts")]
    return main(["export", str(published), "-o", str(directory / "out"), *arguments])


def test_verify_prints_accuracy_of_exported_variant(
    published: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "texts").write_text("\n".join(SENTENCES))
    assert export_cuda(published, tmp_path) == 0
    capsys.readouterr()
    assert main(["verify", str(tmp_path / "out")]) == 0
    (line,) = (line for line in capsys.readouterr().out.splitlines() if "graph cuda" in line)
    parity = r"max difference from torch \d\.\d\de-0\d \(limit \de-0\d, 8 batches\)"
    assert re.fullmatch(rf"  graph cuda, float16: {parity}, min cosine to float32 0\.9999\d{{3}} \(7 texts\)", line)


@pytest.mark.parametrize(("body", "message"), [(None, "cannot be read"), (b"\xff", "not UTF-8"), (b"", "no text")])
def test_export_rejects_unreadable_eval_texts(
    published: Path, tmp_path: Path, body: bytes | None, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if body is not None:
        (tmp_path / "texts").write_bytes(body)
    assert export_cuda(published, tmp_path) == 65
    assert error_line(capsys).startswith(f"attendant-model: {tmp_path / 'texts'}: {message}")
    assert not (tmp_path / "out").exists()


def test_verify_names_damaged_file(artifact: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (artifact / "weights.bin").write_bytes(b"")
    assert main(["verify", str(artifact)]) == 78
    assert error_line(capsys).startswith(f"attendant-model: {artifact}/weights.bin: size mismatch (0 bytes, ")


@pytest.mark.parametrize(
    ("name", "body", "message"),
    [
        ("config.json", "{", "config.json: not JSON"),
        ("tokenizer.json", "{}", "tokenizer.json"),
        ("tokenizer.json", "\xff", "tokenizer.json"),
        ("sentence_bert_config.json", '{"max_seq_length": 2}', "sentence_bert_config.json: no room for text"),
    ],
)
def test_export_names_invalid_model_file(
    source: Path, name: str, body: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (source / name).write_text(body)
    assert main(["export", str(source), "-o", str(source.parent / "out")]) == 65
    line = error_line(capsys)
    assert line.startswith("attendant-model: ")
    assert message in line
    assert not (source.parent / "out").exists()


def unknown_beyond_the_table(definition: dict[str, Any], number: int) -> str:
    """Give the unknown token another id; it is special, but every unknown word becomes it."""
    vocabulary = definition["model"]["vocab"]
    vocabulary["[UNK]"] = number
    next(token for token in definition["added_tokens"] if token["content"] == "[UNK]")["id"] = number
    return "[UNK]"


def added_beyond_the_table(definition: dict[str, Any], number: int) -> str:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    definition["added_tokens"].append({"id": number, "content": "onemore", **flags})
    return "onemore"


def end_beyond_the_table(definition: dict[str, Any], number: int) -> str:
    """Let the post-processor insert an id that the vocabulary does not have."""
    end = definition["post_processor"]["special_tokens"]["[SEP]"]
    end["ids"] = [number]
    return ""


@pytest.mark.parametrize("change", [unknown_beyond_the_table, added_beyond_the_table, end_beyond_the_table])
def test_export_rejects_a_token_without_a_row_in_the_embedding_table(
    source: Path, change: Callable[[dict[str, Any], int], str], capsys: pytest.CaptureFixture[str]
) -> None:
    size = read_json(source / "config.json")["vocab_size"]
    definition = read_json(source / "tokenizer.json")
    token = change(definition, size)
    write_json(source / "tokenizer.json", definition)
    assert main(["export", str(source), "-o", str(source.parent / "out")]) == 65
    assert error_line(capsys) == (
        f"attendant-model: tokenizer.json: token {token!r} is not in the embedding table (id {size}, "
        f"limit {size - 1}). Use the tokenizer of the model."
    )


def test_special_tokens_of_texts_need_rows_in_the_embedding_table(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without that option, a special token that no text and no prompt contains may lie beyond the table."""
    size = read_json(source / "config.json")["vocab_size"]
    definition = read_json(source / "tokenizer.json")
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    definition["added_tokens"].append({"id": size, "content": "[IMG]", "special": True, **flags})
    write_json(source / "tokenizer.json", definition)
    arguments = ["export", str(source), "-o", str(tmp_path / "out"), "--no-explain"]
    assert main(arguments) == 0
    problem = f"token '[IMG]' is not in the embedding table (id {size}, limit {size - 1})"
    assert main([*arguments, "--special-tokens-in-text"]) == 65
    assert problem in error_line(capsys)
    write_json(source / "config_sentence_transformers.json", {"prompts": {"query": "[IMG] find: "}})
    assert main(arguments) == 65
    assert problem in error_line(capsys)


def test_export_without_explain_assumes_last_pooling_of_causal_models(
    publish: Publish, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = publish("causal-bert")
    assert main(["export", str(source), "-o", str(tmp_path / "out"), "--no-explain"]) == 0
    err = capsys.readouterr().err
    assert "warning: assumed last pooling and no normalization, which no file of the model sets." in err
    assert f": attendant-model export {source} -o DIR --pooling last --no-normalize\n" in err
    assert "largest difference between fast.onnx and torch: " in err
    assert "explain.onnx" not in err
    manifest = Artifact.open(tmp_path / "out").manifest
    assert [*manifest.graphs] == ["fast"]
    assert (manifest.embedding.pooling, manifest.origins["pooling"]) == ("last", "assumed")


@pytest.mark.parametrize("special", [["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"], ["[UNK]"]])
def test_export_rejects_a_tokenizer_without_vocabulary(
    source: Path, special: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """transformers 5 writes one if the files of the vocabulary are missing."""
    ids = {token: number for number, token in enumerate(special)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordPiece(ids, unk_token="[UNK]"))
    tokenizer.add_special_tokens(special)
    tokenizer.save(str(source / "tokenizer.json"))
    assert main(["export", str(source), "-o", str(source.parent / "out")]) == 65
    message = f"tokenizer.json: no vocabulary ({len(special)} tokens). Use another one."
    assert error_line(capsys) == f"attendant-model: {message}"


def test_tokenizer_without_latin_letters_is_accepted(source: Path) -> None:
    tokenizer = tokenizers.Tokenizer.from_file(str(source / "tokenizer.json"))
    size = tokenizer.get_vocab_size()
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(chr(0x1200 + index) for index in range(size // 2))]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    tokenizer.model = tokenizers.models.WordPiece(vocabulary, unk_token="[UNK]")
    tokenizer.save(str(source / "tokenizer.json"))
    check_tokenizer(load_checkpoint(source))


def test_special_token_of_another_task_may_be_beyond_the_embedding_table(source: Path) -> None:
    tokenizer = tokenizers.Tokenizer.from_file(str(source / "tokenizer.json"))
    tokenizer.add_special_tokens(["<image>"])
    tokenizer.save(str(source / "tokenizer.json"))
    checkpoint = load_checkpoint(source)
    assert Tokenizer(checkpoint.tokenizer).vocab_size == checkpoint.encoder.config.vocab_size + 1
    check_tokenizer(checkpoint)


@pytest.mark.parametrize("out", ["notes", "notes/out"])
def test_export_keeps_file_in_place_of_output_directory(
    published: Path, tmp_path: Path, out: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "notes").write_text("text")
    assert main(["export", str(published), "-o", str(tmp_path / out)]) == 73
    assert error_line(capsys).startswith("attendant-model: ")
    assert (tmp_path / "notes").read_text() == "text"


@pytest.mark.parametrize(
    "arguments", [[], ["export"], ["export", "x"], ["verify"], ["serve"], ["export", "x", "-o", "y", "--variant", "z"]]
)
def test_invalid_arguments_exit_with_usage(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    error = capsys.readouterr().err
    assert re.fullmatch(r"attendant-model( \w+)?: .+ See: attendant-model( \w+)? --help\n", error)


def test_unknown_option_is_compared_with_those_of_its_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["export", "x", "-o", "y", "--poling", "mean"])
    message = "unknown option --poling (did you mean --pooling?). See: attendant-model export --help\n"
    assert capsys.readouterr().err == f"attendant-model export: {message}"


def test_verify_works_without_torch_and_onnx(exported: Path) -> None:
    code = (
        "import sys; sys.modules.update(dict.fromkeys(('torch', 'onnx', 'onnx_ir', 'onnxruntime', 'safetensors')));"
        "from model.__main__ import main; sys.exit(main(['verify', sys.argv[1]]))"
    )
    result = subprocess.run([sys.executable, "-c", code, str(exported)], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")


def test_export_without_torch_suggests_install_command(exported: Path, tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['torch'] = None;"
        "from model.__main__ import main; sys.exit(main(['export', sys.argv[1], '-o', sys.argv[2]]))"
    )
    arguments = [sys.executable, "-c", code, str(exported), str(tmp_path / "out")]
    result = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert result.returncode == 78
    assert re.fullmatch(r"attendant-model: torch: not installed\. Run: pip install '\.\[.*export\]'\n", result.stderr)


# Embedding settings as `export` and `verify` print them.


def test_settings_show_prompts_and_dense_layers() -> None:
    dense = (DenseLayer(torch.ones(256, 768), None, "tanh"), DenseLayer(torch.ones(64, 256), None, "identity"))
    embedding = EmbeddingConfig(include_prompt=False, dense=dense)
    prompts = {"query": "q: ", "document": "d: ", "empty": ""}
    origins = {"prompts": "config_sentence_transformers.json", "dense": "modules.json"}
    assert list(describe_settings(embedding, prompts, "query", 512, origins)) == [
        "pooling: mean, without the prompt",
        "normalization: no",
        "maximum length: 512 tokens",
        "prompts: query, document; default query (config_sentence_transformers.json)",
        "dense layers: 768 to 256 tanh, 256 to 64 identity (modules.json)",
    ]


def test_settings_omit_a_default_prompt_without_a_text() -> None:
    assert "prompts: none" in list(describe_settings(EmbeddingConfig(), {"document": ""}, "document", 512, {}))


@pytest.mark.parametrize(
    ("assumed", "expected"),
    [
        (("pooling", "normalize"), "assumed mean pooling and no normalization, which no file of the model sets."),
        (("pooling",), "assumed mean pooling, which no file of the model sets."),
        (("normalize",), "assumed no normalization, which no file of the model sets."),
    ],
)
def test_warning_names_assumed_settings_and_the_command_that_sets_them(
    assumed: tuple[Literal["pooling", "normalize"], ...], expected: str
) -> None:
    """`attendant serve`, which also prints the warning, has no such options."""
    assert warn_about_assumptions("mean", {}, "default") is None
    warning = warn_about_assumptions("mean", dict.fromkeys(assumed, ASSUMED), "my models/a", "v1")
    assert warning is not None
    assert expected in warning
    words = shlex.split(warning.rpartition(": ")[2])
    options = _parser().parse_args(words[1:])
    assert (words[0], options.source, options.revision) == ("attendant-model", "my models/a", "v1")
    assert options.pooling == ("mean" if "pooling" in assumed else None)
    assert options.normalize is (False if "normalize" in assumed else None)


def test_other_heads_are_listed() -> None:
    assert list(describe_heads(None, None, {"masked LM": None})) == []
    tokens = TokenClassificationHead(graph="t", labels=("O", "B-PER"))
    assert list(describe_heads(None, tokens, {})) == ["token classifier: 2 labels (O, B-PER)"]
    others = {"sparse vectors": 1, "multi-vector": None, "masked LM": 2}
    assert list(describe_heads(None, None, others)) == ["other heads: sparse vectors, masked LM"]
