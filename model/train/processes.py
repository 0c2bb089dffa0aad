"""The processes of a run: one, or several started by torchrun, which average their gradients."""

import os
from dataclasses import dataclass

import torch
import torch.distributed as dist


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
        """True for the process that writes files and messages."""
        return self.rank == 0

    def sum(self, value: float) -> float:
        """Return the sum over all processes."""
        if self.count == 1:
            return value
        total = torch.tensor(value, dtype=torch.float64, device=self.device)
        dist.all_reduce(total)
        return float(total)

    def any(self, value: bool) -> bool:
        """Return whether `value` is true in at least one process."""
        return self.sum(float(value)) > 0

    def wait(self) -> None:
        """Wait until every process is here."""
        if self.count > 1:
            dist.barrier()

    def stop(self) -> None:
        """Leave the group."""
        if self.count > 1:
            dist.destroy_process_group()
