"""`python -m bench.model_costs`: the time of a text of 128 tokens with each architecture and size of the model list.

Weights are random, and every model uses the vocabulary of all-MiniLM-L6-v2; neither affects the time. The load is REST
requests of 16 texts over four connections.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import torch
from safetensors.torch import save_file
from torch import nn

from bench.machine import Machine, load_average
from bench.project import checkpoint_directory
from bench.random_models import TOKENIZER_FILES, export_silently, seconds, served
from model.encoder import Encoder
from model.export.graphs import ParityError
from model.families import find_family
from model.families.family import ConfigReader
from model.source.known_models import KNOWN_MODELS, KnownModel
from model.source.model_size import estimate_size, relative_cost

VOCABULARY = 30522
TEXT = " ".join(["word"] * 126)
"""128 tokens with the special ones."""
CONNECTIONS, TEXTS, REQUESTS = 4, 16, 16
MAX_MILLIONS = 1000
REFERENCE = "sentence-transformers/all-MiniLM-L6-v2"
UNSIZED = frozenset(("vocab_size", "max_position_embeddings", "n_positions", "pad_token_id", "type_vocab_size"))
"""Config keys that do not affect the time."""


def main(arguments: Sequence[str]) -> int:
    """Print a table."""
    parser = argparse.ArgumentParser(prog="python -m bench.model_costs", description=__doc__)
    parser.add_argument("models", nargs="*", help="models of the list; all by default")
    names = parser.parse_args(arguments).models
    print(f"{Machine.read().describe()}, {load_average()}", flush=True)
    reference = 0.0
    for models in distinct_models():
        if names and models[0].hub_id not in (*names, REFERENCE):
            continue
        try:
            precision, rate = measure(models[0])
        except ParityError as error:  # random weights may make values so large that rounding shows
            print(f"{models[0].hub_id}: {error}", flush=True)
            continue
        reference = reference or rate
        size = estimate_size(models[0].hub_id, models[0].config, models[0].max_input_tokens)
        print(
            f"{rate:8.1f} texts/s  time {reference / rate:6.1f}  operations {relative_cost(size):6.1f}  {precision}  "
            f"{', '.join(model.hub_id for model in models)}",
            flush=True,
        )
    return 0


def distinct_models() -> list[list[KnownModel]]:
    """Return the models of up to a billion parameters, grouped by what decides their time; the reference first."""
    groups: dict[str, list[KnownModel]] = {}
    for model in KNOWN_MODELS:
        if model.millions <= MAX_MILLIONS:
            key = json.dumps(
                {name: value for name, value in model.config.items() if name not in UNSIZED}, sort_keys=True
            )
            groups.setdefault(key, []).append(model)
    return sorted(groups.values(), key=lambda group: (group[0].hub_id != REFERENCE, group[0].millions))


def measure(model: KnownModel) -> tuple[str, float]:
    """Return the precision and the texts per second of a model with random weights."""
    with tempfile.TemporaryDirectory() as folder:
        source, artifact = Path(folder, "source"), Path(folder, "artifact")
        source.mkdir()
        publish(model.config, source)
        export_silently(source, artifact)
        with served(artifact, max_inputs=TEXTS) as server, httpx.Client(base_url=server.rest, timeout=300) as client:

            def send(_: int = 0) -> None:
                response = client.post(
                    "/v1/embeddings", json={"model": "bench", "input": [TEXT] * TEXTS, "encoding_format": "base64"}
                )
                assert response.status_code == 200, response.text

            precision = client.get("/v1/model").json()["precision"]
            send()
            with ThreadPoolExecutor(CONNECTIONS) as pool:
                took = seconds(lambda: list(pool.map(send, range(REQUESTS))))
    return precision, REQUESTS * TEXTS / took


def publish(config: Mapping[str, Any], directory: Path) -> None:
    """Write a model with random weights under its published names."""
    values = {**config, "vocab_size": VOCABULARY}
    family, reader = find_family(values), ConfigReader(values)
    assert family is not None
    encoder = Encoder(family.read_config(reader))
    generator = torch.Generator().manual_seed(11)
    with torch.no_grad():
        for module in encoder.modules():
            is_norm = isinstance(module, nn.LayerNorm | nn.RMSNorm) or "Norm" in type(module).__name__
            for parameter in () if is_norm else module.parameters(recurse=False):
                parameter.normal_(0, 0.02, generator=generator)
    state = {family.published_name(name): tensor.contiguous() for name, tensor in encoder.state_dict().items()}
    unused_rows = family.first_position(reader)
    for name, table in state.items():
        if "position_embeddings" in name and unused_rows:
            state[name] = torch.cat([torch.zeros(unused_rows, table.shape[1]), table])
    save_file(state, directory / "model.safetensors")
    (directory / "config.json").write_text(json.dumps(values))
    for name in TOKENIZER_FILES:
        (directory / name).write_bytes((checkpoint_directory() / name).read_bytes())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
