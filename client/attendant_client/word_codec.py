"""Fill-mask responses, decoded from REST JSON and gRPC messages."""

from collections.abc import Sequence
from typing import Any

from attendant_client.label_codec import to_score
from attendant_client.pb import encoder_pb2 as pb
from attendant_client.similarity_codec import enum_name
from attendant_client.word_types import FilledPosition, FillMaskResponse, FillMaskResult, LayerPredictions, Prediction


def from_json(document: Any) -> FillMaskResponse:
    """Decode a REST body."""
    results = [
        FillMaskResult(
            result["token_count"],
            result["truncated"],
            [
                FilledPosition(
                    **{name: position[name] for name in ("position", "start", "end", "segment")},
                    layers=[
                        LayerPredictions(layer["layer"], [Prediction(**word) for word in layer["predictions"]])
                        for layer in position["layers"]
                    ],
                )
                for position in result["positions"]
            ],
        )
        for result in document["results"]
    ]
    usage = document["usage"]
    return FillMaskResponse(
        document["model"], document["precision"], results, usage["tokens"], usage["truncated_inputs"]
    )


def from_messages(messages: Sequence[pb.FillMaskResponse]) -> FillMaskResponse:
    """Decode a gRPC message."""
    (message,) = messages
    results = [
        FillMaskResult(result.token_count, result.truncated, [_position(position) for position in result.positions])
        for result in message.results
    ]
    usage, precision = message.usage, enum_name(pb.Precision, message.precision)
    return FillMaskResponse(message.model, precision, results, usage.tokens, usage.truncated_inputs)


def _position(position: pb.FilledPosition) -> FilledPosition:
    layers = [
        LayerPredictions(
            layer.layer,
            [Prediction(word.token, word.id, to_score(word.probability)) for word in layer.predictions],
        )
        for layer in position.layers
    ]
    return FilledPosition(position.position, position.start, position.end, position.segment, layers)
