"""Training speed: tokens per second of the training loop compared with bare forward and backward passes.

The bare passes run the same model and head on full rows of random tokens, without optimizer, data or validation. The
loop tokenizes, masks and packs real sentences, clips gradients and updates weights; padding does not count.
"""

import statistics
import sys
import tempfile
from pathlib import Path

import torch

from bench.machine import Machine, load_average
from bench.random_models import seconds
from model.artifact.tokenizer import Tokenizer
from model.export.sample_texts import sample_sentences
from model.train.command import write_tokenizer
from model.train.config import TrainConfig
from model.train.loop import Processes, Run
from model.train.objectives import LanguageModel, Objective, make_objective

TARGET = 0.7
ROUNDS, SENTENCES = 30, 20_000


def main() -> int:
    """Alternate training steps with bare passes; return 0 if the median ratio meets the target."""
    print(f"{Machine.read().describe()}, {torch.get_num_threads()} threads, {load_average()}")
    with tempfile.TemporaryDirectory() as folder:
        config = _config(Path(folder))
        write_tokenizer(config, Path(folder) / "tokenizer.json")
        tokenizer = Tokenizer((Path(folder) / "tokenizer.json").read_bytes())
        objective = make_objective(config, tokenizer, None)
        run = Run(config, objective, tokenizer, Processes(0, 1, torch.device("cpu")))
        run.advance()
        loop, bare, shares = [], [], []
        for number in range(1, ROUNDS + 1):
            tokens = run.tokens
            duration = seconds(run.advance)
            loop.append((run.tokens - tokens) / duration)
            bare.append(_measure_bare(config, objective))
            shares.append(loop[-1] / bare[-1])
            if number % 10 == 0:
                print(f"round {number}: loop {loop[-1]:.0f} tokens/s, bare {bare[-1]:.0f} tokens/s", flush=True)
    share = statistics.median(shares)
    print(f"medians: loop {statistics.median(loop):.0f} tokens/s, bare {statistics.median(bare):.0f} tokens/s")
    print(f"median share {share:.2f}, target {TARGET}: {'pass' if share >= TARGET else 'fail'}")
    return 0 if share >= TARGET else 1


def _config(folder: Path) -> TrainConfig:
    """Return a configuration with the default sizes, with its texts in `folder`."""
    texts = sample_sentences(SENTENCES)
    (folder / "train.txt").write_text("\n".join(texts), encoding="utf-8")
    (folder / "validation.txt").write_text("\n".join(texts[:200]), encoding="utf-8")
    return TrainConfig.model_validate(
        {
            "model": {"name": "bench"},
            "data": {"train": [folder / "train.txt"], "validation": [folder / "validation.txt"]},
            "run": {"steps": 1_000_000, "validation_steps": 1_000_000},
        }
    )


def _measure_bare(config: TrainConfig, objective: Objective) -> float:
    """Return the tokens per second of forward and backward passes on full rows."""
    shape = (config.run.rows_per_batch, config.model.max_input_tokens)
    network, encoder = objective.network, objective.encoder
    assert isinstance(network, LanguageModel)
    inputs = {
        "input_ids": torch.randint(5, encoder.config.vocab_size, shape),
        "position_ids": torch.arange(shape[1]).expand(shape),
        "token_type_ids": torch.zeros(shape, dtype=torch.int64),
        "sequence_ids": torch.ones(shape, dtype=torch.int64),
    }
    is_target = torch.rand(shape) < config.masking.probability

    def step() -> None:
        hidden = encoder(**inputs)[is_target]
        targets = network.norm(torch.nn.functional.gelu(network.transform(hidden)))
        logits = torch.nn.functional.linear(targets, encoder.embeddings.word_embeddings.weight, network.bias)
        loss = torch.nn.functional.cross_entropy(logits, inputs["input_ids"][is_target])
        torch.autograd.backward(loss)
        network.zero_grad(set_to_none=True)

    return shape[0] * shape[1] / seconds(step)


if __name__ == "__main__":
    sys.exit(main())
