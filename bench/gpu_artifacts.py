"""Packages and artifacts for the GPU bench: models of two sizes, with random weights unless a checkpoint is
installed.
"""

import importlib.util
import json
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

PACKAGES = {
    "model": ("numpy", "pydantic", "tokenizers"),
    "engine": ("onnxruntime", "dotenv", "prometheus_client", "regex", "threadpoolctl"),
    "export": ("torch", "onnx", "onnx_ir", "onnxscript", "safetensors"),
    "server": (
        "fastapi",
        "google.rpc",
        "grpc",
        "grpc_health",
        "grpc_reflection",
        "httptools",
        "opentelemetry",
        "orjson",
        "pybase64",
        "starlette",
        "uvicorn",
        "uvloop",
    ),
}
"""Modules required by each step."""

NAMES = {
    "dotenv": "python-dotenv",
    "google.rpc": "googleapis-common-protos",
    "grpc": "grpcio",
    "grpc_health": "grpcio-health-checking",
    "grpc_reflection": "grpcio-reflection",
    "onnxruntime": "onnxruntime-gpu[cuda,cudnn]",
    "opentelemetry": "opentelemetry-api",
}
"""Package names that differ from module names."""

MEASURED_TEXTS = 200


@dataclass(frozen=True)
class Size:
    """Dimensions of an encoder."""

    name: str
    layers: int
    width: int
    inner: int
    heads: int = 12
    positions: int = 512
    vocabulary: int = 30522


BERT_BASE = Size("bert-base", layers=12, width=768, inner=3072)
MINILM = Size("minilm-l6", layers=6, width=384, inner=1536)


def missing_packages(kinds: Iterable[str] = PACKAGES) -> list[str]:
    """Return the pip names of these steps' missing packages."""
    modules = [module for kind in kinds for module in PACKAGES[kind]]
    return sorted(NAMES.get(module, module).replace("_", "-") for module in modules if not _is_installed(module))


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # the parent package is missing
        return False


def make_artifact(size: Size, out: Path) -> Path:
    """Export an encoder with BERT's random initialization, including its CUDA graph."""
    published = out.parent / f"{size.name}-published"
    published.mkdir(parents=True)
    _publish(size, published)
    return export_artifact(str(published), out)


def export_artifact(source: str, out: Path) -> Path:
    """Export a published model, including its CUDA graph."""
    from model.export.export import Variants, export
    from model.export.sample_texts import sample_sentences

    variants = Variants(("cuda",), sample_sentences(MEASURED_TEXTS))
    export(source, out, revision=None, name=None, progress=lambda step: None, variants=variants)
    return out


def export_families(out: Path) -> list[Path]:
    """Export tiny models of every architecture and kind of head, for a GPU machine without transformers."""
    from tests.labels import CROSS_ENCODER, TOKEN_CLASSIFIER, publish_classifier
    from tests.model.family_cases import FAMILY_CASES, bert_case
    from tests.model.retriever_cases import BGE_M3
    from tests.model.tiny_tokenizers import BUILDERS
    from tests.model.varlen_inputs import FAMILIES, WINDOWS, publish_windows
    from tests.retrievers import SPLADE, publish_retriever

    artifacts = []
    heads = {
        "cross-encoder": publish_classifier(CROSS_ENCODER),
        "token-classifier": publish_classifier(TOKEN_CLASSIFIER),
        **{kind: publish_retriever(kind) for kind in (SPLADE, BGE_M3, "stanford", "pylate, attended")},
    }
    for name, source in heads.items():
        folder = out / name.replace(", ", "-")
        print(f"exporting {folder}", flush=True)
        artifacts.append(export_artifact(str(source), folder))
    for name in WINDOWS:  # with a second graph, for short texts
        folder = out / f"{name.partition(',')[0]}-short-texts"
        publish_windows(name, out / "published" / folder.name)
        print(f"exporting {folder}", flush=True)
        artifacts.append(export_artifact(str(out / "published" / folder.name), folder))
    for name in FAMILIES:
        case, folder = FAMILY_CASES.get(name) or bert_case(name), out / name.replace(", ", "-")
        published = out / "published" / folder.name
        case.publish(published, BUILDERS[case.tokenizer]().to_str().encode())
        print(f"exporting {folder}", flush=True)
        artifacts.append(export_artifact(str(published), folder))
    return artifacts


def _publish(size: Size, directory: Path) -> None:
    import torch
    from safetensors.torch import save_file
    from torch import nn

    from model.encoder import Encoder, EncoderConfig
    from model.families import FAMILIES

    config = EncoderConfig(
        size.vocabulary,
        size.width,
        size.layers,
        size.heads,
        size.inner,
        size.positions,
        type_vocab_size=2,
        norm_eps=1e-12,
    )
    encoder = Encoder(config)
    generator = torch.Generator().manual_seed(11)
    with torch.no_grad():
        for module in encoder.modules():
            for parameter in () if isinstance(module, nn.LayerNorm) else module.parameters(recurse=False):
                parameter.normal_(0, 0.02, generator=generator)
    renamed = {FAMILIES["bert"].published_name(name): tensor for name, tensor in encoder.state_dict().items()}
    save_file(renamed, directory / "model.safetensors")
    (directory / "tokenizer.json").write_text(_train_tokenizer(size.vocabulary))
    described = {
        "model_type": "bert",
        "vocab_size": size.vocabulary,
        "hidden_size": size.width,
        "num_hidden_layers": size.layers,
        "num_attention_heads": size.heads,
        "intermediate_size": size.inner,
        "max_position_embeddings": size.positions,
        "type_vocab_size": 2,
        "layer_norm_eps": 1e-12,
        "hidden_act": "gelu",
    }
    (directory / "config.json").write_text(json.dumps(described))


def _train_tokenizer(vocabulary: int) -> str:
    """Train a BERT tokenizer on the sample sentences."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

    from model.export.sample_texts import find_sentences

    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trainer = trainers.WordPieceTrainer(vocab_size=vocabulary, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator(find_sentences(), trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    tokenizer.decoder = decoders.WordPiece()
    return str(tokenizer.to_str())


if __name__ == "__main__":
    export_families(Path(sys.argv[1]))
