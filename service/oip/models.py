"""Descriptions of the server and its models, with the protocol's field names, which JSON and protobuf share."""

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from attendant_client.types import ModelInfo

from service import __version__
from service.engine.engine import Engine, Models
from service.engine.repository import ModelState
from service.errors import NotFound, UnknownField, echo
from service.metrics import Metrics
from service.oip.inference import ATTENTION_MASK, INPUT_IDS, TEXT, describe_outputs

NAME = "oip"
"""The metric label of this API, over REST and gRPC."""
VERSION = "1"
"""The only version of every model."""
PLATFORM = "attendant"
EXTENSIONS = ["binary_tensor_data", "model_configuration", "model_repository", "parameters", "statistics"]
UNLOAD_PARAMETERS = ("unload_dependents",)
"""Sent by Triton's clients. No effect, because models do not depend on each other."""
CONFIG_TYPES = {"BYTES": "TYPE_STRING", "FP32": "TYPE_FP32", "INT64": "TYPE_INT64"}
FAILED = ("500", "504", "INTERNAL", "DEADLINE_EXCEEDED")
"""The codes of requests that failed because of the server."""
NANOSECONDS = 1_000_000_000

Description = dict[str, Any]
Totals = defaultdict[tuple[str, str], float]


def find_model(models: Models, name: str, version: str) -> Engine:
    """Return the engine of a model; raises `NotFound` for an unknown name or version."""
    engine = models.find(name, "model_name")
    if version not in ("", VERSION):
        raise NotFound("not found", f'Use "{VERSION}".', field="model_version", actual=echo(version),
                       reason="MODEL_NOT_FOUND")  # fmt: skip
    return engine


def describe_server() -> Description:
    """Return the metadata of the server."""
    return {"name": "attendant", "version": __version__, "extensions": EXTENSIONS}


def describe_model(info: ModelInfo) -> Description:
    """Return the metadata of a model."""
    inputs, outputs = _tensors(info)
    return {
        "name": info.name,
        "versions": [VERSION],
        "platform": PLATFORM,
        "inputs": [{"name": name, "datatype": datatype, "shape": shape} for name, datatype, shape in inputs],
        "outputs": [{"name": name, "datatype": datatype, "shape": shape} for name, datatype, shape in outputs],
    }


def describe_config(info: ModelInfo) -> Description:
    """Return the applicable part of Triton's model configuration."""
    inputs, outputs = _tensors(info)
    return {
        "name": info.name,
        "platform": PLATFORM,
        "backend": PLATFORM,
        "max_batch_size": 0,
        "input": [
            {"name": name, "data_type": CONFIG_TYPES[datatype], "dims": shape, "optional": True}
            for name, datatype, shape in inputs
        ],
        "output": [
            {"name": name, "data_type": CONFIG_TYPES[datatype], "dims": shape} for name, datatype, shape in outputs
        ],
        "model_transaction_policy": {"decoupled": False},
    }


def _tensors(info: ModelInfo) -> tuple[Sequence[tuple[str, str, list[int]]], Sequence[tuple[str, str, list[int]]]]:
    """Return name, datatype and shape of inputs and outputs. Size -1 depends on the request."""
    inputs = ((TEXT, "BYTES", [-1]), (INPUT_IDS, "INT64", [-1, -1]), (ATTENTION_MASK, "INT64", [-1, -1]))
    return inputs, describe_outputs(info)


def describe_repository(
    models: Models, unserved: Sequence[ModelState] = (), *, only_ready: bool = False
) -> list[Description]:
    """Return the names and aliases of the served models and, unless `only_ready`, the names of unserved models."""
    ready = [{"name": name, "version": VERSION, "state": "READY", "reason": ""} for name in models.names]
    others = [
        {
            "name": state.name,
            "version": VERSION,
            "state": "LOADING" if state.loading else "UNAVAILABLE",
            "reason": state.error or ("" if state.loading else "unloaded"),
        }
        for state in unserved
    ]
    return ready if only_ready else ready + others


def check_parameters(names: Iterable[str], supported: Sequence[str]) -> None:
    """Raise `UnknownField` for an unsupported parameter of a request to load or unload a model."""
    unknown = next((name for name in names if name not in supported), None)
    if unknown is not None:
        raise UnknownField("not supported", "Remove it.", field=f"parameters.{echo(unknown)}")


async def describe_statistics(infos: Sequence[ModelInfo], metrics: Metrics) -> Description:
    """Return the models' counts and durations since the server started, over all APIs and workers."""
    totals = await asyncio.to_thread(_read_totals, metrics)
    return {"model_stats": [_statistics(info.name, totals) for info in infos]}


def _read_totals(metrics: Metrics) -> Totals:
    """Return sums by model and by name, such as "batches_count", "failed_total" or, in seconds, "queue_sum"."""
    totals: Totals = defaultdict(float)
    for name, labels, value, *_ in metrics.read_samples(metrics.batch_size, metrics.stage_seconds, metrics.requests):
        if labels.get("code", FAILED[0]) in FAILED:
            subject = labels.get("stage", "failed" if "code" in labels else "batches")
            totals[labels["model"], f"{subject}_{name.rpartition('_')[2]}"] += value
    return totals


def _statistics(model: str, totals: Totals) -> Description:
    def stage(name: str) -> Description:
        seconds, count = totals[model, f"{name}_sum"], totals[model, f"{name}_count"]
        return {"count": int(count), "ns": int(seconds * NANOSECONDS)}

    return {
        "name": model,
        "version": VERSION,
        "inference_count": int(totals[model, "batches_sum"]),
        "execution_count": int(totals[model, "batches_count"]),
        "inference_stats": {
            # Counts from the last stage. No metric records the total duration of successful or failed requests.
            "success": {"count": stage("postprocess")["count"]},
            "fail": {"count": int(totals[model, "failed_total"])},
            "queue": stage("queue"),
            "compute_input": stage("tokenize"),
            "compute_infer": stage("inference"),
            "compute_output": stage("postprocess"),
        },
    }
