"""Tiny sentence-transformers models with various poolings, dense layers, prompts and similarity functions."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense, Normalize, Pooling, Transformer
from torch import nn

from model.export.export import Variants, export
from service.config import Settings
from service.engine.model_loader import LoadedModel
from tests.model.family_cases import HIDDEN_SIZE, WORDPIECE_FAMILIES

PROMPTS = {"query": "find: ", "document": "text: "}
MAX_TOKENS = 31


@dataclass(frozen=True)
class Variant:
    """The modules after the encoder, and a model's configuration."""

    pooling: str | tuple[str, ...] = "mean"
    dense: tuple[tuple[int, bool, type[nn.Module]], ...] = ()
    """Output size, bias and activation of each dense layer."""
    normalize: bool = False
    include_prompt: bool = True
    options: dict[str, Any] = field(default_factory=dict)
    family: str = "bert"


# sentence-transformers adds empty query and document prompts, which override the default prompt.
VARIANTS = {
    "mean": Variant(),
    "mean, byte-level BPE": Variant(family="roberta"),
    "mean, unigram": Variant(family="camembert"),
    "mean, causal": Variant(family="causal-bert"),
    "cls": Variant("cls"),
    "max": Variant("max"),
    "prompts": Variant(normalize=True, options={"prompts": PROMPTS}),
    "excluded prompts": Variant(include_prompt=False, options={"prompts": PROMPTS}),
    "cls, excluded prompts": Variant("cls", include_prompt=False, options={"prompts": PROMPTS}),
    "empty prompts": Variant(options={"prompts": {"any": "find: "}, "default_prompt_name": "any"}),
    "linear dense layers": Variant(dense=((19, True, nn.Identity), (17, False, nn.Identity)), normalize=True),
    "nonlinear dense layer": Variant(dense=((19, True, nn.Tanh),)),
    "combined": Variant(("mean", "mean_sqrt_len_tokens"), dense=((19, True, nn.Identity),), normalize=True),
    "cls and a dense layer": Variant("cls", dense=((19, True, nn.Identity),)),
    "dot": Variant(dense=((19, True, nn.Identity),), options={"similarity_fn_name": "dot"}),
    "euclidean": Variant(dense=((19, True, nn.Identity),), options={"similarity_fn_name": "euclidean"}),
    "manhattan": Variant("cls", normalize=True, options={"similarity_fn_name": "manhattan", "truncate_dim": 9}),
    "truncated": Variant(
        dense=((19, True, nn.Identity),), normalize=True, options={"similarity_fn_name": "dot", "truncate_dim": 11}
    ),
    "truncated, not normalized": Variant(options={"truncate_dim": 11}),
}


def publish_variant(variant: Variant, publish: Callable[[str], Path], root: Path) -> Path:
    bare = shutil.copytree(publish(variant.family), root / "bare")
    names = {f"{name}_token": f"[{name.upper()}]" for name in ("unk", "cls", "sep", "pad", "mask")}
    if variant.family.removeprefix("causal-") not in WORDPIECE_FAMILIES:
        names |= {f"{name}_token": f"<{name}>" for name in ("unk", "pad", "mask")}
        names |= {"cls_token": "<s>", "sep_token": "</s>"}
    tokenizer = transformers.PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_file=str(bare / "tokenizer.json"), **names
    )
    tokenizer.save_pretrained(bare)
    torch.manual_seed(7)
    modules: list[nn.Module] = [
        Transformer(str(bare), max_seq_length=MAX_TOKENS),
        Pooling(HIDDEN_SIZE, variant.pooling, include_prompt=variant.include_prompt),
    ]
    size = HIDDEN_SIZE * (1 if isinstance(variant.pooling, str) else len(variant.pooling))
    for out, bias, activation in variant.dense:
        dense = Dense(in_features=size, out_features=out, bias=bias, activation_function=activation())
        if bias:
            nn.init.normal_(dense.linear.bias)
        modules.append(dense)
        size = out
    if variant.normalize:
        modules.append(Normalize())
    published = root / "published"
    SentenceTransformer(modules=modules, device="cpu", **variant.options).save_pretrained(str(published))
    return published


def build(variant: Variant, publish: Callable[[str], Path], root: Path) -> tuple[LoadedModel, SentenceTransformer]:
    published = publish_variant(variant, publish, root)
    artifact = root / "artifact"
    # One test reads other layers, of a model that combines poolings.
    variants = Variants(explain=isinstance(variant.pooling, tuple))
    export(str(published), artifact, name="tiny", variants=variants)
    model = LoadedModel.load(Settings(model_dir=artifact, precision="float32"))
    return model, SentenceTransformer(str(published), device="cpu")
