"""Low-rank adapters of tasks (Hu et al. 2022) in the files of a checkpoint, as jina-embeddings-v3 has them.

Each adapted weight W is stored with one pair of matrices per task. A task is selected at export, where its pair is
added to the weight, so a served model has the size and the speed of one without adapters.
"""

import re
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from model.checkpoint_files import CheckpointError

STORED = re.compile(r"\.parametrizations\.weight\.original$")


def list_tasks(config: Mapping[str, Any]) -> list[str]:
    """Return the names of the tasks that a checkpoint has adapters for."""
    return [str(task) for task in config.get("lora_adaptations") or []]


def merge_adapters(tensors: Mapping[str, Tensor], config: Mapping[str, Any], task: str | None) -> dict[str, Tensor]:
    """Return the tensors with the adapters of a task merged into the weights; None selects none.

    With scale alpha / r, a linear weight becomes `W + scale * B A`, for A (r, in) and B (out, r), and an embedding
    table `W + scale * A B`, for A (V, r) and B (r, D).

    Raises:
        CheckpointError: there is no such task.
    """
    tasks = list_tasks(config)
    if task is not None and task not in tasks:
        known = f"Use {', '.join(tasks)}." if tasks else "This model has no adapters: leave it out."
        raise CheckpointError(f"--task: unknown task ({task}). {known}")
    merged = {name: tensor for name, tensor in tensors.items() if ".parametrizations." not in name}
    for name, tensor in tensors.items():
        if not STORED.search(name):
            continue
        module = STORED.sub("", name)
        weight = tensor.float()
        if task is not None:
            a, b = (
                _find(tensors, f"{module}.parametrizations.weight.0.lora_{part}")[tasks.index(task)] for part in "AB"
            )
            scale = float(config["lora_alpha"]) / float(config["lora_rank"])
            product = b.float() @ a.float() if b.shape[0] == weight.shape[0] else a.float() @ b.float()
            weight = weight + scale * product
        merged[f"{module}.weight"] = weight
    return merged


def _find(tensors: Mapping[str, Tensor], name: str) -> Tensor:
    if name not in tensors:
        raise CheckpointError(f"Weights: tensor {name} is missing. Download the model again.")
    return tensors[name]
