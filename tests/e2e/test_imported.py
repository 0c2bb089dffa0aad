"""Import of models published only as an ONNX graph: results match their libraries; others are rejected."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
import transformers
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import quantize_dynamic
from onnxruntime.transformers.float16 import convert_float_to_float16

from model.artifact.files import TOKENIZER, Artifact
from model.artifact.names import PADDED
from model.artifact.packing import PaddedFill
from model.artifact.tokenizer import Tokenizer, TokenizerInput
from model.export import imported
from model.export.export import Variants, export
from model.source.published import CheckpointError
from model.source.sentence_transformers import SettingOptions
from service.config import Settings
from service.engine.backends.base import BackendChoice
from service.engine.backends.select import open_backend
from service.engine.tasks import EncodeTask, HeadName
from tests.e2e.test_family_backends import export_quietly, hidden_states
from tests.model.classifier_cases import CLASSIFIER_CASES, TOKEN_CLASSIFIER_CASES
from tests.model.conftest import Publish, mark_slow
from tests.model.family_cases import SIZES, FamilyCase, load_oracle, save_native
from tests.model.graph_files import INPUTS, publish_graph
from tests.model.model_files import change_json
from tests.model.tiny_tokenizers import BERT_TOKENS
from tests.service.conftest import open_harness
from tests.shared_models import load_anew

TEXTS = ("a", "the river bank", "money in the bank of the river, and more of it", "x " * 30, "bank", "bank " * 15)
FAMILIES = (
    "bert", "xlm-roberta", "mpnet", "modernbert", "t5", "deberta-v2", "nomic_bert", "jina_bert", "eurobert",
    "qwen3, windows",
)  # fmt: skip


def assert_equal_to_library(artifact: Path, model: Any, tolerance: float = 1e-5) -> None:
    """Compare the hidden states of batches with transformers, which reads one text at a time."""
    opened = Artifact.open(artifact)
    backend = open_backend(opened, BackendChoice("cpu", "float32", PADDED, 2, 1, 128, "test"))
    tokenizer = Tokenizer(opened.read(TOKENIZER))
    tokens = tokenizer.encode([TokenizerInput(text) for text in TEXTS])
    limit = opened.manifest.max_input_tokens
    fitting = [(text, item) for text, item in zip(TEXTS, tokens, strict=True) if len(item) <= limit]
    results = hidden_states(tokenizer, backend, tuple(text for text, _ in fitting))
    with torch.inference_mode():
        for (_, item), actual in zip(fitting, results, strict=True):
            ids = torch.tensor([item.input_ids])
            expected = model(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state[0].float().numpy()
            np.testing.assert_allclose(actual, expected, atol=tolerance * np.abs(expected).max(), rtol=0)


@pytest.mark.parametrize("family", mark_slow(*FAMILIES, fast=("bert",)))
def test_hidden_states_equal_the_library(publish: Publish, tmp_path: Path, family: str) -> None:
    published = publish(family)
    publish_graph(published, tmp_path / "model")
    export_quietly(tmp_path / "model", tmp_path / "artifact", Variants())
    assert_equal_to_library(tmp_path / "artifact", load_oracle(published))


@pytest.mark.slow
def test_graphs_of_unknown_architectures_are_served(publish: Publish, tmp_path: Path) -> None:
    """Megatron-BERT is no family of this project. Its graph shows whether config.json has too many positions."""
    published = shutil.copytree(publish("bert"), tmp_path / "megatron", ignore=shutil.ignore_patterns("*.safetensors"))
    vocab_size = Tokenizer((published / TOKENIZER).read_bytes()).vocab_size
    sizes: dict[str, Any] = SIZES | {"max_position_embeddings": 40}
    model: Any = transformers.MegatronBertModel(transformers.MegatronBertConfig(vocab_size=vocab_size, **sizes))
    model.eval()
    save_native(model, published)
    publish_graph(published, tmp_path / "model", model=model)
    export_quietly(tmp_path / "model", tmp_path / "artifact", Variants())
    assert_equal_to_library(tmp_path / "artifact", model)
    change_json(tmp_path / "model" / "config.json", max_position_embeddings=41)
    with pytest.raises(CheckpointError, match=r"model\.onnx: fails for 41 tokens .* set --max-input-tokens"):
        export_quietly(tmp_path / "model", tmp_path / "other", Variants())
    export(str(tmp_path / "model"), tmp_path / "other", settings=SettingOptions(max_input_tokens=40))


def test_positions_of_roberta_are_refused(publish: Publish, tmp_path: Path) -> None:
    """They start after the padding id, whereas the input would start at 0."""
    inputs = ("input_ids", "attention_mask", "position_ids")
    publish_graph(publish("roberta"), tmp_path / "model", inputs=inputs, dynamo=False)
    with pytest.raises(CheckpointError, match=r"model\.onnx: input position_ids is not supported for roberta"):
        export_quietly(tmp_path / "model", tmp_path / "artifact", Variants())


def test_logits_of_another_name_are_no_hidden_states(graph_model: Path, tmp_path: Path) -> None:
    directory = shutil.copytree(graph_model, tmp_path / "model")
    path = directory / "onnx" / "model.onnx"
    model = onnx.load(path)
    rename("last_hidden_state", "output")(model)
    onnx.save(model, path)
    export_quietly(directory, tmp_path / "artifact", Variants())
    change_json(directory / "config.json", hidden_size=12)
    with pytest.raises(
        CheckpointError, match=r'vectors of output "output" have size 24, but hidden states have size 12 in'
    ):
        export_quietly(directory, tmp_path / "artifact", Variants())


@pytest.mark.slow
def test_graphs_with_positions_and_in_float16_are_served(publish: Publish, tmp_path: Path) -> None:
    published = publish("qwen3")
    publish_graph(published, tmp_path / "model", inputs=("input_ids", "attention_mask", "position_ids"))
    export_quietly(tmp_path / "model", tmp_path / "artifact", Variants())
    assert_equal_to_library(tmp_path / "artifact", load_oracle(published))
    publish_graph(published, tmp_path / "half", model=load_oracle(published).half(), folder="")
    export_quietly(tmp_path / "half", tmp_path / "half-artifact", Variants())
    assert load_anew(Settings(model_dir=tmp_path / "half-artifact")).backend.choice.precision == "float16"
    assert_equal_to_library(tmp_path / "half-artifact", load_oracle(published), tolerance=0.02)


async def test_embeddings_equal_sentence_transformers(labse: Path, tmp_path: Path) -> None:
    """Prompts, pooling, dense layers, normalization and truncation come from the files; the graph ends before them."""
    from sentence_transformers import SentenceTransformer

    published = shutil.copytree(labse, tmp_path / "published")
    change_json(published / "sentence_bert_config.json", query_length=12)
    publish_graph(published, tmp_path / "model")
    export_quietly(tmp_path / "model", tmp_path / "artifact", Variants())
    library = SentenceTransformer(str(published), device="cpu")
    texts = [*TEXTS, "word " * 100]
    async with open_harness(load_anew(Settings(model_dir=tmp_path / "artifact"))) as harness:
        for role, encode in (("query", library.encode_query), (None, library.encode)):
            body: dict[str, Any] = {"inputs": texts, "truncation": "right", **({"role": role} if role else {})}
            response = (await harness.post("/v1/encode", body)).raise_for_status().json()
            vectors = np.array([result["pooled"] for result in response["results"]])
            np.testing.assert_allclose(vectors, encode(texts), atol=1e-5)
        for path, body in (
            ("/v1/attend", {"inputs": "a"}),
            ("/v1/encode", {"inputs": "a", "layers": [0]}),
            ("/v1/encode", {"inputs": "a", "outputs": ["static"]}),
        ):
            error = (await harness.post(path, body)).json()["error"]
            assert error["reason"] == "UNSUPPORTED_BY_MODEL"
            assert "imported from an ONNX graph" in error["message"]
        explained = {"queries": "river bank", "documents": ["money in bank"], "explain": True}
        assert (await harness.post("/v1/similarity", explained)).status_code == 200


CLASSIFIERS = (
    ("SequenceClassification", "bert"),
    ("SequenceClassification", "roberta"),
    ("SequenceClassification", "distilbert"),
    ("SequenceClassification", "electra"),
    ("SequenceClassification", "deberta-v2"),
    ("SequenceClassification", "modernbert"),
    ("SequenceClassification", "modernbert, biases"),
    ("SequenceClassification", "eurobert, mean"),
    ("TokenClassification", "bert"),
    ("TokenClassification", "modernbert"),
    ("TokenClassification", "qwen3"),
)
"""Heads that differ in their layers, activations and poolings."""


def assert_logits_equal(published: Path, out: Path, task: str, oracle: Any) -> None:
    """Compare the logits of a batch with those of transformers, which reads one text at a time."""
    export_quietly(published, out, Variants())
    opened = Artifact.open(out)
    backend = open_backend(opened, BackendChoice("cpu", "float32", PADDED, 2, 1, 128, "test"))
    tokens = Tokenizer(opened.read(TOKENIZER)).encode([TokenizerInput(text) for text in TEXTS[:4]])
    head: HeadName = "classification" if task == "SequenceClassification" else "token_classification"
    results = backend.run([EncodeTask(item, None, hidden=False, heads=(head,)) for item in tokens])
    for item, result in zip(tokens, results, strict=True):
        ids = torch.tensor([item.input_ids])
        with torch.inference_mode():
            expected = oracle(input_ids=ids, attention_mask=torch.ones_like(ids)).logits[0].numpy()
        actual = result.logits if head == "classification" else result.token_logits
        assert actual is not None
        np.testing.assert_allclose(actual, expected, atol=1e-5 * max(1, np.abs(expected).max()), rtol=0)


@pytest.fixture
def publish_classifier(definitions: dict[str, bytes], tmp_path: Path) -> Callable[..., Any]:
    """Return a function that publishes a model, and its graph in the folder "model"; it returns the model."""

    def publish(case: FamilyCase, task: str, *, dynamo: bool = True) -> Any:
        (published := tmp_path / "published").mkdir()
        case.publish(published, definitions[case.tokenizer])
        oracle = load_oracle(published, getattr(transformers, f"AutoModelFor{task}"))
        publish_graph(published, tmp_path / "model", model=oracle, output="logits", dynamo=dynamo)
        return oracle

    return publish


async def test_rerankers_equal_sentence_transformers(publish_classifier: Callable[..., Any], tmp_path: Path) -> None:
    from sentence_transformers import CrossEncoder

    publish_classifier(CLASSIFIER_CASES["bert, one label"], "SequenceClassification", dynamo=False)
    export_quietly(tmp_path / "model", tmp_path / "artifact", Variants())
    query, documents = "river bank", [text for text in TEXTS if len(text) < 80]  # longer ones exceed the limit
    tokenizer = transformers.PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_file=str(tmp_path / "published" / TOKENIZER), model_input_names=[*INPUTS], **BERT_TOKENS
    )
    tokenizer.save_pretrained(tmp_path / "published")
    library = CrossEncoder(str(tmp_path / "published"), device="cpu")
    expected = library.predict([(query, document) for document in documents])
    async with open_harness(load_anew(Settings(model_dir=tmp_path / "artifact"))) as harness:
        body = {"query": query, "documents": documents}
        ranked = (await harness.post("/v1/rerank", body)).raise_for_status().json()["results"]
        scores = {result["index"]: result["relevance_score"] for result in ranked}
        np.testing.assert_allclose([scores[place] for place in range(len(documents))], expected, atol=1e-5)
        explained = (await harness.post("/v1/rerank", body | {"effect": "occlusion"})).raise_for_status().json()
        assert explained["results"][0]["explanation"]


def rename(name: str, new: str) -> Callable[[onnx.ModelProto], None]:
    def change(model: onnx.ModelProto) -> None:
        for value in (*model.graph.input, *model.graph.output):
            value.name = new if value.name == name else value.name
        for node in model.graph.node:
            for names in (node.input, node.output):
                names[:] = [new if value == name else value for value in names]

    return change


def list_initializers_as_inputs(model: onnx.ModelProto) -> None:
    model.graph.input.extend(
        helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims) for tensor in model.graph.initializer
    )


def use_names_of_the_import(model: onnx.ModelProto) -> None:
    for new, node in zip(("rows", "attendant.0", "last_hidden_state"), reversed(model.graph.node[:-1]), strict=False):
        rename(node.output[0], new)(model)


def compute_with(values: dict[str, list[int]], *nodes: onnx.NodeProto) -> Callable[[onnx.ModelProto], None]:
    """Return a change that computes the logits with more nodes, the first one from "raw", and constants."""

    def change(model: onnx.ModelProto) -> None:
        rename("logits", "raw")(model)
        model.graph.node.extend(nodes)
        model.graph.output[0].CopyFrom(onnx.ValueInfoProto(name="logits"))
        model.graph.initializer.extend(
            helper.make_tensor(name, TensorProto.INT64, [len(value)], value) for name, value in values.items()
        )

    return change


center_the_batch = compute_with(
    {"axes": [0]},
    helper.make_node("ReduceMean", ["raw", "axes"], ["center"]),
    helper.make_node("Sub", ["raw", "center"], ["logits"]),
)


@pytest.mark.parametrize(
    ("task", "change", "message"),
    [
        ("SequenceClassification", list_initializers_as_inputs, None),
        ("SequenceClassification", use_names_of_the_import, None),
        ("TokenClassification", use_names_of_the_import, None),
        ("SequenceClassification", center_the_batch, "unsupported classifier head"),
        (
            "SequenceClassification",
            compute_with({"axes": [2]}, helper.make_node("Unsqueeze", ["raw", "axes"], ["logits"])),
            r"output logits has shape \(1, 3, 1\) for a text of",
        ),
        (
            "TokenClassification",
            compute_with(
                {"start": [1], "end": [99], "axes": [1]},
                helper.make_node("Slice", ["raw", "start", "end", "axes"], ["logits"]),
            ),
            r"output logits has shape \(1, \d+, 5\) for a text of",
        ),
    ],
)
def test_classifiers_are_served_as_they_compute_or_refused(
    publish_classifier: Callable[..., Any],
    tmp_path: Path,
    task: str,
    change: Callable[[onnx.ModelProto], None],
    message: str | None,
) -> None:
    cases = CLASSIFIER_CASES if task == "SequenceClassification" else TOKEN_CLASSIFIER_CASES
    oracle = publish_classifier(cases["bert"], task, dynamo=False)
    path = tmp_path / "model" / "onnx" / "model.onnx"
    model = onnx.load(path)
    change(model)
    onnx.save(model, path)
    if message is None:
        assert_logits_equal(tmp_path / "model", tmp_path / "artifact", task, oracle)
        return
    with pytest.raises(CheckpointError, match=message):
        export_quietly(tmp_path / "model", tmp_path / "artifact", Variants())


def test_the_pooling_of_a_head_is_the_one_that_fits_best(
    publish_classifier: Callable[..., Any], tmp_path: Path
) -> None:
    """In float16, where one large value of all hidden states hides the difference between two poolings."""
    case = CLASSIFIER_CASES["modernbert, biases"]
    publish_classifier(case, "SequenceClassification", dynamo=False)
    path = tmp_path / "model" / "onnx" / "model.onnx"
    model = onnx.load(path)
    (final,) = [tensor for tensor in model.graph.initializer if tensor.name.endswith("final_norm.bias")]
    bias = numpy_helper.to_array(final).copy()
    bias[3] = 200
    final.CopyFrom(numpy_helper.from_array(bias, final.name))
    onnx.save(convert_float_to_float16(model, keep_io_types=True), path)
    export_quietly(tmp_path / "model", tmp_path / "artifact", Variants())
    head = Artifact.open(tmp_path / "artifact").manifest.classification
    assert head is not None
    assert head.pooling == "mean"


def test_other_heads_are_refused(publish_classifier: Callable[..., Any], tmp_path: Path) -> None:
    publish_classifier(CLASSIFIER_CASES["eurobert, late"], "SequenceClassification", dynamo=False)
    with pytest.raises(CheckpointError, match="unsupported classifier head"):
        export_quietly(tmp_path / "model", tmp_path / "artifact", Variants())


@pytest.mark.parametrize(
    ("task", "kind", "dynamo"),
    [
        *(pytest.param(*case, False, marks=[] if case[1] == "bert" else pytest.mark.slow) for case in CLASSIFIERS),
        *(
            pytest.param("SequenceClassification", kind, True, marks=pytest.mark.slow)
            for kind in ("bert", "modernbert")
        ),
    ],
)
def test_logits_equal_the_library(
    publish_classifier: Callable[..., Any], tmp_path: Path, task: str, kind: str, dynamo: bool
) -> None:
    """In batches of several lengths, through the server's backend, for both exporters of torch."""
    cases = CLASSIFIER_CASES if task == "SequenceClassification" else TOKEN_CLASSIFIER_CASES
    oracle = publish_classifier(cases[kind], task, dynamo=dynamo)
    assert_logits_equal(tmp_path / "model", tmp_path / "artifact", task, oracle)


@pytest.fixture(scope="module")
def graph_model(publish: Publish, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("graph") / "model"
    publish_graph(publish("bert"), directory)
    return directory


def use_custom_operator(model: onnx.ModelProto) -> None:
    model.graph.node[0].domain = "acme"
    model.opset_import.append(helper.make_opsetid("acme", 1))


def fix_length(model: onnx.ModelProto) -> None:
    for value in model.graph.input:
        value.type.tensor_type.shape.dim[1].dim_value = 16


def move_weights(location: str) -> Callable[[onnx.ModelProto], None]:
    def change(model: onnx.ModelProto) -> None:
        for tensor in model.graph.initializer:
            for entry in tensor.external_data:
                entry.value = location if entry.key == "location" else entry.value

    return change


def use_old_operators(model: onnx.ModelProto) -> None:
    model.opset_import[0].version = 9


def allocate(model: onnx.ModelProto) -> None:
    """Add 64 GiB to the output, which constant folding would compute as soon as the graph is opened."""
    output = model.graph.output[0].name
    rename(output, "hidden")(model)
    del model.graph.output[:]
    size = helper.make_tensor("size", TensorProto.INT64, [1], [2**34])
    value = helper.make_tensor("value", TensorProto.FLOAT, [1], [0.0])
    model.graph.initializer.append(size)
    model.graph.node.extend(
        [
            helper.make_node("ConstantOfShape", ["size"], ["large"], value=value),
            helper.make_node("ReduceSum", ["large"], ["nothing"], keepdims=0),
            helper.make_node("Add", ["hidden", "nothing"], [output]),
        ]
    )
    model.graph.output.append(helper.make_tensor_value_info(output, TensorProto.FLOAT, ["batch", "sequence", 24]))


def loop_forever(model: onnx.ModelProto) -> None:
    output = model.graph.output[0].name
    rename(output, "hidden")(model)
    del model.graph.output[:]
    flag = helper.make_tensor_value_info("again", TensorProto.BOOL, [])
    body = helper.make_graph(
        [helper.make_node("Identity", ["more"], ["again"]), helper.make_node("Identity", ["before"], ["after"])],
        "body",
        [
            helper.make_tensor_value_info("number", TensorProto.INT64, []),
            helper.make_tensor_value_info("more", TensorProto.BOOL, []),
            helper.make_tensor_value_info("before", TensorProto.FLOAT, ["batch", "sequence", 24]),
        ],
        [flag, helper.make_tensor_value_info("after", TensorProto.FLOAT, ["batch", "sequence", 24])],
    )
    model.graph.initializer.append(helper.make_tensor("true", TensorProto.BOOL, [], [True]))
    model.graph.node.append(helper.make_node("Loop", ["", "true", "hidden"], [output], body=body))
    model.graph.output.append(helper.make_tensor_value_info(output, TensorProto.FLOAT, ["batch", "sequence", 24]))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (loop_forever, r"fails for \d+ tokens \(it ran for more than 1 s\)"),
        (use_custom_operator, r"operator \w+ of the domain 'acme' is unknown to ONNX Runtime"),
        (rename("token_type_ids", "task_id"), "unknown input task_id. Supported: input_ids, attention_mask"),
        (rename("attention_mask", "position_ids"), "no input attention_mask"),
        (rename("last_hidden_state", "logits"), r"24 logits per token, but config\.json names 2 labels"),
        (fix_length, r"input input_ids is \(int64\) \(batch, 16\), expected integers \(batch, sequence\)"),
        (move_weights("../model.onnx.data"), "weights in '../model.onnx.data', outside of the directory"),
        (move_weights("/etc/passwd"), "weights in '/etc/passwd', outside of the directory"),
        (move_weights("link"), "weights in 'link', outside of the directory"),
        (move_weights("none"), "none: missing. Download it: model.onnx has its weights there"),
        (use_old_operators, r"opset 9 is not supported \(at least 11\)"),
        (allocate, r"takes more than 2\.0 GiB of memory"),
    ],
)
def test_graphs_that_cannot_be_served_are_refused(
    graph_model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[onnx.ModelProto], None],
    message: str,
) -> None:
    monkeypatch.setattr(imported, "MAX_RUN_S", 1.0)
    directory = shutil.copytree(graph_model, tmp_path / "model")
    (directory / "onnx" / "link").symlink_to("/etc/hostname")
    path = directory / "onnx" / "model.onnx"
    model = onnx.load(path, load_external_data=False)
    change(model)
    path.write_bytes(model.SerializeToString())
    with pytest.raises(CheckpointError, match=message):
        export_quietly(directory, tmp_path / "artifact", Variants())
    assert not (tmp_path / "artifact").exists()


@pytest.mark.parametrize("folder", ["onnx", ""])
def test_graphs_in_the_cache_of_the_hub_are_served(graph_model: Path, tmp_path: Path, folder: str) -> None:
    """There, each file is a link to one of the folder "blobs"."""
    repository = tmp_path / "models--owner--name"
    snapshot = repository / "snapshots" / ("a" * 40)
    for number, path in enumerate(path for path in graph_model.rglob("*") if path.is_file()):
        name = path.relative_to(graph_model)
        link = snapshot / folder / path.name if name.parts[0] == "onnx" else snapshot / name
        link.parent.mkdir(parents=True, exist_ok=True)
        (repository / "blobs").mkdir(exist_ok=True)
        shutil.copy(path, repository / "blobs" / str(number))
        link.symlink_to(os.path.relpath(repository / "blobs" / str(number), link.parent))
    export_quietly(snapshot, tmp_path / "artifact", Variants())
    Artifact.open(tmp_path / "artifact")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"not a graph", "not an ONNX graph"),
        (b"", "model.onnx: empty. Download it again"),
        (b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
    ],
)
def test_damaged_graphs_are_refused(graph_model: Path, tmp_path: Path, content: bytes, message: str) -> None:
    directory = shutil.copytree(graph_model, tmp_path / "model")
    (directory / "onnx" / "model.onnx").write_bytes(content)
    with pytest.raises(CheckpointError, match=message):
        export_quietly(directory, tmp_path / "artifact", Variants())


def test_graphs_whose_vectors_depend_on_the_batch_are_refused(graph_model: Path, tmp_path: Path) -> None:
    """Quantization at run time uses one scale for all texts of a batch."""
    directory = shutil.copytree(graph_model, tmp_path / "model")
    quantize_dynamic(directory / "onnx" / "model.onnx", directory / "quantized.onnx")
    shutil.rmtree(directory / "onnx")
    with pytest.raises(
        CheckpointError, match=r"quantized\.onnx: vectors of a text depend on the other texts of a batch"
    ):
        export_quietly(directory, tmp_path / "artifact", Variants())


def test_options_and_modules_that_need_weights_are_refused(graph_model: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="--variant int8: an ONNX graph has no variants"):
        export_quietly(graph_model, tmp_path / "artifact", Variants(("int8",)))
    with pytest.raises(CheckpointError, match="--task: an ONNX graph has no adapters"):
        export(str(graph_model), tmp_path / "artifact", settings=SettingOptions(task="retrieval"))
    directory = shutil.copytree(graph_model, tmp_path / "model")
    for name in ("a", "b"):
        os.link(directory / "onnx" / "model.onnx", directory / f"{name}.onnx")
    (directory / "onnx" / "model.onnx").unlink()
    with pytest.raises(CheckpointError, match=r"several ONNX graphs \(a.onnx, b.onnx\), and none is model.onnx"):
        export_quietly(directory, tmp_path / "artifact", Variants())


@pytest.mark.parametrize("seed", range(20))
def test_padded_batches_keep_their_limits(seed: int) -> None:
    rng = np.random.default_rng(seed)
    fill = PaddedFill(128)
    rows = [size for size in rng.integers(1, 200, 50).tolist() if fill.add(size)]
    padded = len(rows) * max(rows)
    assert len(rows) == 1 or (padded <= 128 and sum(rows) >= 0.75 * padded)
    assert fill.free == max(0, 128 - padded)
