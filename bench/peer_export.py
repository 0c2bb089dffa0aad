"""Export a peer's model to ONNX, inside the peer's environment. Usage: `peer_export.py SOURCE TARGET`."""

import sys
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModel, AutoTokenizer

source, target = sys.argv[1:]
tokenizer: Any = AutoTokenizer.from_pretrained(source)
encoder: Any = AutoModel.from_pretrained(source, attn_implementation="eager").eval()
example = tokenizer(["one sentence", "another one, longer than the first"], padding=True, return_tensors="pt")
names = ["input_ids", "attention_mask", "token_type_ids"]
Path(target).parent.mkdir(parents=True, exist_ok=True)
torch.onnx.export(
    encoder,
    tuple(example[name] for name in names),
    target,
    input_names=names,
    output_names=["last_hidden_state"],
    dynamic_axes={name: {0: "batch", 1: "tokens"} for name in [*names, "last_hidden_state"]},
    opset_version=17,
    dynamo=False,
)
