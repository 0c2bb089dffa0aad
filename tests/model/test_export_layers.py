"""Export of the graphs of attention maps."""

from pathlib import Path

from model.encoder import Encoder, EncoderConfig, LayerConfig, RotaryConfig
from model.export.graphs import GraphSet
from model.export.layers import write_layer_graphs


def test_graphs_of_layers_are_measured_within_few_positions(tmp_path: Path) -> None:
    """Tables of rotary positions end at the maximum input length, here less than the usual tokens of a measurement."""
    config = EncoderConfig(
        vocab_size=9, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=5,
        max_position_embeddings=10, type_vocab_size=0, norm_eps=1e-6, position_table=False,
        layers=(LayerConfig(rotary=RotaryConfig(100.0)),),
    )  # fmt: skip
    graphs = GraphSet(tmp_path)
    assert write_layer_graphs(Encoder(config).eval(), graphs) == ["layer_0"]
    (report,) = graphs.reports.values()
    assert report.parity.max_abs_difference <= report.parity.tolerance
