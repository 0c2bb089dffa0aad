"""The training loop: AdamW with warm-up and decay over packed batches, with exact resumption."""

import contextlib
import csv
import hashlib
import io
import math
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any, NoReturn

import matplotlib as mpl
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from tqdm import tqdm

from model.artifact.files import MANIFEST
from model.artifact.packing import BatchShape
from model.artifact.tokenizer import Tokenizer
from model.source.hub import digest_weights
from model.train.config import ModelOptions, OptimizerOptions, TrainConfig, TrainError, WriteError
from model.train.data import ExampleStream, PackedBatches, State, TrainingBatch
from model.train.objectives import Objective


@dataclass(frozen=True)
class Processes:
    """This process among all processes of the run."""

    rank: int
    count: int
    device: torch.device

    @classmethod
    def start(cls) -> "Processes":
        """Join the other processes if torchrun started this one."""
        count, local_rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("LOCAL_RANK", "0"))
        has_gpu = torch.cuda.is_available()
        device = torch.device("cuda", local_rank) if has_gpu else torch.device("cpu")
        if count > 1:
            dist.init_process_group("nccl" if has_gpu else "gloo")
        return cls(dist.get_rank() if count > 1 else 0, count, device)

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def sum(self, value: float) -> float:
        if self.count == 1:
            return value
        total = torch.tensor(value, dtype=torch.float64, device=self.device)
        dist.all_reduce(total)
        return float(total)

    def any(self, value: bool) -> bool:
        return self.sum(float(value)) > 0

    def wait(self) -> None:
        if self.count > 1:
            dist.barrier()

    def stop(self) -> None:
        if self.count > 1:
            dist.destroy_process_group()


CHECKPOINT = "checkpoint.pt"


def save_checkpoint(directory: Path, state: dict[str, Any]) -> None:
    """Write the state of a run, replacing the previous checkpoint. Raises WriteError if the disk is full."""
    body = io.BytesIO()
    torch.save(state, body)
    path = directory / CHECKPOINT
    temporary = path.with_suffix(".new")
    try:
        with temporary.open("wb") as file:
            file.write(body.getbuffer())
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise WriteError(
            f"{path}: cannot be written ({error.strerror}). Free disk space, then run the command again: it continues "
            "from the last checkpoint."
        ) from None


def load_checkpoint(directory: Path, device: torch.device) -> dict[str, Any] | None:
    """Load the state of a run to `device`; None if the directory contains no checkpoint.

    Raises TrainError if the checkpoint is damaged.
    """
    path = directory / CHECKPOINT
    if not path.is_file():
        return None
    try:
        state: dict[str, Any] = torch.load(path, map_location=device, weights_only=True)
    except Exception as error:  # noqa: BLE001  # torch.load raises many kinds
        raise TrainError(f"{path}: damaged ({type(error).__name__}). Remove it to start again.") from None
    return state


METRICS, CURVES = "metrics.csv", "curves.png"
COLUMNS = (
    "step", "tokens", "loss", "learning_rate", "gradient_norm", "tokens_per_second", "validation_loss", "perplexity",
)  # fmt: skip


class MetricsFile:
    """metrics.csv, with one row per step. Rows after `step` are removed: a resumed run writes them again."""

    def __init__(self, directory: Path, step: int) -> None:
        self._path = directory / METRICS
        kept = [row for row in read_metrics(directory) if int(row["step"]) <= step]
        self._file = self._path.open("w", newline="", encoding="utf-8")
        self._writer = csv.DictWriter(self._file, COLUMNS)
        self._writer.writeheader()
        self._writer.writerows(kept)
        self._board = _open_board(directory)

    def write(self, row: Mapping[str, float]) -> None:
        self._writer.writerow(row)
        for name, value in row.items():
            if self._board is not None and name != "step":
                self._board.add_scalar(name, value, int(row["step"]))

    def close(self) -> None:
        self._file.close()
        if self._board is not None:
            self._board.close()

    def flush(self) -> None:
        """Write buffered rows, so that metrics.csv never lags behind a checkpoint."""
        self._file.flush()


def read_metrics(directory: Path) -> list[dict[str, str]]:
    """Return the rows of metrics.csv; none if it does not exist."""
    path = directory / METRICS
    if not path.is_file():
        return []
    with path.open(newline="", encoding="utf-8", errors="replace") as file:
        # If a run was killed, the last row may be incomplete.
        return [row for row in csv.DictReader(file) if row.get(COLUMNS[-1]) is not None]


def _open_board(directory: Path) -> Any:
    """Return a writer for TensorBoard; None if it is not installed."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    return SummaryWriter(str(directory / "tensorboard"))


def draw_curves(directory: Path, unit: str) -> None:
    """Write curves.png from metrics.csv: training and validation loss by tokens; `unit` is the loss's unit."""
    mpl.use("Agg")
    from matplotlib import pyplot as plt

    rows = read_metrics(directory)
    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    axes.plot([int(row["tokens"]) for row in rows], [float(row["loss"]) for row in rows], lw=0.8, label="training")
    validated = [row for row in rows if row["validation_loss"]]
    axes.plot(
        [int(row["tokens"]) for row in validated], [float(row["validation_loss"]) for row in validated],
        marker="o", ms=3, label="validation",
    )  # fmt: skip
    axes.set(xlabel="tokens", ylabel=f"loss ({unit})")
    axes.legend()
    figure.savefig(directory / CURVES, dpi=120)
    plt.close(figure)


def options_of(config: TrainConfig) -> dict[str, Any]:
    """Return the options that determine a run's result, by name, as JSON values.

    Files are represented by their SHA-256, so they may be moved or copied, but not changed.
    """
    tables: dict[str, Any] = config.model_dump(mode="json")
    for name in ("checkpoint_steps", "validation_steps", "validation_batches"):
        del tables["run"][name]
    del tables["data"]["validation"]
    tables["data"]["train"] = [_digest(path) for path in config.data.train]
    if config.model.init is not None and Path(config.model.init).is_dir():
        tables["model"]["init"] = digest_weights(Path(config.model.init))
    if config.distillation is not None:
        tables["distillation"]["teacher"] = _digest(config.distillation.teacher / MANIFEST)
    options = {}
    for table, values in tables.items():
        for name, value in (values or {"": None}).items():
            options[f"{table}.{name}"] = value
    return options


def _digest(path: Path) -> str:
    try:
        status = path.stat()
        return _digest_version(path, status.st_size, status.st_mtime_ns)
    except OSError as error:
        raise TrainError(f"{path}: cannot be read ({error.strerror}). Correct the path.") from None


@lru_cache
def _digest_version(path: Path, size: int, modified_ns: int) -> str:
    """Return the digest of a file, cached because a run needs it twice and corpora are large."""
    with path.open("rb") as file:
        return "sha256:" + hashlib.file_digest(file, "sha256").hexdigest()


def check_same_options(options: Mapping[str, Any], saved: Mapping[str, Any], directory: Path) -> None:
    """Raise TrainError if a run in `directory` was started with other options.

    Runs of older versions lack newer model options, whose defaults match the old behavior.
    """
    defaults = {f"model.{name}": field.default for name, field in ModelOptions.model_fields.items()}
    saved = defaults | dict(saved)
    for name in sorted({*options, *saved}):
        if options.get(name) != saved.get(name):
            raise TrainError(
                f"{directory}: has a run with another {name} ({_shorten(saved.get(name))}, now "
                f"{_shorten(options.get(name))}). Choose another directory, or remove this one to start again."
            )


def _shorten(value: Any) -> str:
    """Format an option's value for an error, with digests abbreviated."""
    return re.sub(r"(sha256:\w{12})\w+", r"\1", repr(value))


MAX_EXPONENT = 700
"""Larger exponents overflow a float."""


@dataclass(frozen=True)
class Result:
    """The number of trained tokens, and the last validation loss in the unit of the objective."""

    tokens: int
    validation_loss: float


LOG_PERIOD_S = 10.0


class LogProgress:
    """Progress for a log: a line every `LOG_PERIOD_S`. It implements the methods of tqdm that `train` calls."""

    def __init__(self, steps: int, step: int) -> None:
        self._steps, self._step, self._first = steps, step, step
        self._started = self._last = time.monotonic()
        self._values = ""

    def set_postfix(self, *, refresh: bool, **values: str) -> None:
        """Set the values to print in the next line."""
        self._values = "".join(f", {name} {value}" for name, value in values.items())

    def update(self) -> None:
        """Count a step, and print a line if one is due."""
        self._step += 1
        now = time.monotonic()
        if now - self._last >= LOG_PERIOD_S:
            self._last = now
            left = (now - self._started) / (self._step - self._first) * (self._steps - self._step)
            line = f"step {self._step:,} of {self._steps:,}{self._values}, {left:,.0f} s left"
            sys.stderr.write(f"attendant-model train: {line}\n")

    def close(self) -> None:
        """Do nothing: the command prints the result."""


def show_progress(steps: int, step: int, *, disable: bool) -> "tqdm[NoReturn] | LogProgress":
    """Return a progress bar on a terminal, otherwise log lines."""
    if disable or sys.stderr.isatty():
        return tqdm(total=steps, initial=step, unit="step", disable=disable)
    return LogProgress(steps, step)


def train(
    config: TrainConfig, objective: Objective, tokenizer: Tokenizer, directory: Path, processes: Processes
) -> Result:
    """Train the network of an objective, or continue the run in `directory`. Raises TrainError."""
    steps = config.run.steps
    run = Run(config, objective, tokenizer, processes)
    run.restore(load_checkpoint(directory, processes.device), directory)
    with contextlib.ExitStack() as stack:
        signaled = stack.enter_context(catch_signals())
        processes.wait()  # before metrics.csv exists, all processes must catch signals
        metrics = MetricsFile(directory, run.step) if processes.is_first else None
        progress = show_progress(steps, run.step, disable=not processes.is_first)
        stack.callback(progress.close)
        if metrics is not None:
            stack.enter_context(contextlib.closing(metrics))
        while run.step < steps:
            row = run.advance()
            progress.set_postfix(
                loss=f"{row['loss']:.3f}", tokens_per_s=f"{row['tokens_per_second']:.0f}", refresh=False
            )
            progress.update()
            # Signals reach the processes at different times, but all must stop after the same step.
            interrupted = processes.any(signaled.is_set())
            if metrics is not None:
                metrics.write(row)
                if run.step % config.run.checkpoint_steps == 0 or run.step == steps or interrupted:
                    metrics.flush()
                    save_checkpoint(directory, run.state_dict())
            if interrupted and run.step < steps:
                processes.wait()  # torchrun kills all processes when one of them exits
                raise KeyboardInterrupt
    return Result(run.tokens, run.validate())


class Run:
    """The state of a run between two steps: weights, optimizer, position in the texts, and counts."""

    def __init__(self, config: TrainConfig, objective: Objective, tokenizer: Tokenizer, processes: Processes) -> None:
        if config.run.batches_per_step % processes.count:
            raise TrainError(f"run.batches_per_step: not a multiple of {processes.count} processes.")
        self._config = config
        self._options = options_of(config)
        self._processes = processes
        self._has_perplexity = objective.is_language_model
        self.network = objective.network.to(processes.device)
        self._model: torch.nn.Module = self.network
        if processes.count > 1:
            # Pairs with spans do not use dense layers.
            self._model = DistributedDataParallel(self.network, find_unused_parameters=bool(objective.dense))
        self._optimizer = make_optimizer(self.network, config.optimizer)
        self._batches = make_batches(config, objective, tokenizer, config.data.train, config.run.seed)
        validation = make_batches(config, objective, tokenizer, config.data.validation, seed=0)
        self._validation = list(islice(validation, config.run.validation_batches))
        if not any(batch.count for batch in self._validation):
            raise TrainError("data.validation: no token of the texts is in the vocabulary.")
        self.step = self.tokens = 0

    def restore(self, state: State | None, directory: Path) -> None:
        """Continue from a checkpoint, if any."""
        if state is None:
            return
        try:
            check_same_options(self._options, state["options"], directory)
            self.network.load_state_dict(state["network"])
            self._optimizer.load_state_dict(state["optimizer"])
            self._batches.load_state_dict(state["batches"])
            self.step, self.tokens = state["step"], state["tokens"]
        except (KeyError, TypeError, ValueError, RuntimeError, AttributeError):
            raise TrainError(
                f"{directory / CHECKPOINT}: not a checkpoint of this model. Restore the initial model, or remove the "
                "checkpoint to start again."
            ) from None

    def state_dict(self) -> State:
        """Return everything that `restore` needs."""
        return {
            "options": self._options,
            "step": self.step,
            "tokens": self.tokens,
            "network": self.network.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "batches": self._batches.state_dict(),
        }

    def advance(self) -> dict[str, float]:
        """Take one step and return its metrics. Raises TrainError if the loss or its gradient is not finite."""
        started = time.perf_counter()
        options = self._config.run
        self.step += 1
        rate = learning_rate(self.step, options.steps, self._config.optimizer)
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        # Each process reads the whole stream and runs its share, so the result does not depend on the number of
        # processes.
        batches = list(islice(self._batches, options.batches_per_step))
        loss, norm = take_step(self._model, self._optimizer, batches, self._config, self._processes)
        if not math.isfinite(loss) or not math.isfinite(norm):
            raise TrainError(f"step {self.step}: loss {loss}, gradient norm {norm}. Reduce optimizer.learning_rate.")
        tokens = sum(batch.tokens for batch in batches)
        self.tokens += tokens
        row = {"step": self.step, "tokens": self.tokens, "loss": loss, "learning_rate": rate, "gradient_norm": norm}
        row["tokens_per_second"] = tokens / (time.perf_counter() - started)
        if self.step % options.validation_steps == 0 or self.step == options.steps:
            row["validation_loss"] = self.validate()
            if self._has_perplexity:
                row["perplexity"] = math.exp(min(row["validation_loss"], MAX_EXPONENT))
        return row

    @torch.no_grad()
    def validate(self) -> float:
        """Return the mean loss of the predictions on the validation examples."""
        total = 0.0
        for batch in self._validation:
            with precision(self._config, self._processes.device):
                total += float(self.network(batch.to(self._processes.device)))
        return total / sum(batch.count for batch in self._validation)


def take_step(
    model: Any,
    optimizer: torch.optim.Optimizer,
    batches: list[TrainingBatch],
    config: TrainConfig,
    processes: Processes,
) -> tuple[float, float]:
    """Update the weights once; return the mean loss of all predictions of the step, and the gradient norm."""
    count = max(1, sum(batch.count for batch in batches))
    own = batches[processes.rank :: processes.count]
    optimizer.zero_grad(set_to_none=True)
    total = 0.0
    for number, batch in enumerate(own, start=1):
        is_last = number == len(own)
        with (
            contextlib.nullcontext() if is_last or processes.count == 1 else model.no_sync(),
            precision(config, processes.device),
        ):
            loss = model(batch.to(processes.device)) / count
            # DistributedDataParallel averages gradients over the processes, and the loss is a sum.
            (loss * processes.count).backward()
        total += float(loss.detach())
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), config.optimizer.max_gradient_norm)
    optimizer.step()
    return processes.sum(total), float(norm)


def make_batches(
    config: TrainConfig, objective: Objective, tokenizer: Tokenizer, files: tuple[Path, ...], seed: int
) -> PackedBatches:
    """Return endless batches from files."""
    examples = ExampleStream(files, objective.read, config.data.shuffle_texts, seed)
    shape = BatchShape(config.run.rows_per_batch, config.model.max_input_tokens)
    return PackedBatches(examples, tokenizer, shape, objective.collate, seed, objective.prompts)


def make_optimizer(network: torch.nn.Module, options: OptimizerOptions) -> torch.optim.AdamW:
    """Return AdamW without weight decay for biases and layer norms."""
    parameters = [parameter for parameter in network.parameters() if parameter.requires_grad]
    groups = [
        {"params": [item for item in parameters if item.dim() > 1], "weight_decay": options.weight_decay},
        {"params": [item for item in parameters if item.dim() <= 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=options.learning_rate, betas=options.betas)


def learning_rate(step: int, steps: int, options: OptimizerOptions) -> float:
    """Return the learning rate of a step, from 1: linear warm-up, then cosine decay (Loshchilov & Hutter 2017)."""
    if step <= options.warmup_steps:
        return options.learning_rate * step / options.warmup_steps
    progress = (step - options.warmup_steps) / max(1, steps - options.warmup_steps)
    lowest = options.min_learning_rate_ratio
    return options.learning_rate * (lowest + (1 - lowest) * (1 + math.cos(math.pi * progress)) / 2)


@contextlib.contextmanager
def catch_signals() -> Iterator[threading.Event]:
    """Set an event on SIGINT or SIGTERM, so that the run can save a checkpoint after the current step."""
    event = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield event
        return
    numbers = (signal.SIGINT, signal.SIGTERM)
    previous = [signal.signal(number, lambda *_: event.set()) for number in numbers]
    try:
        yield event
    finally:
        for number, handler in zip(numbers, previous, strict=True):
            signal.signal(number, handler)


def precision(config: TrainConfig, device: torch.device) -> torch.autocast:
    """Compute in bfloat16 where the configuration or a GPU allows it; weights and sums remain float32."""
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=select_precision(config, device) == "bfloat16")


def select_precision(config: TrainConfig, device: torch.device) -> str:
    """Return the precision of the run: the configured one, or a default."""
    if config.run.precision != "auto":
        return config.run.precision
    return "bfloat16" if device.type == "cuda" and torch.cuda.is_bf16_supported() else "float32"
