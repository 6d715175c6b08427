"""What `production` compares with: data-parallel training by hand, for torchrun. Prints samples/s of all ranks.

torchrun --nproc-per-node 2 -m experiments.benchmarks.torchrun_loop HYPERPARAMETERS SECONDS
"""

from __future__ import annotations

import json
import os
import sys
import time
from statistics import median

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset
from torch.utils.data.distributed import DistributedSampler

from experiments.benchmarks.networks import Long

WARM_STEPS = 24


def main() -> None:
    hp, seconds = json.loads(sys.argv[1]), float(sys.argv[2])
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    dist.init_process_group("gloo")
    experiment = Long()
    splits = experiment.data()
    inputs, targets = torch.as_tensor(splits.train_inputs), torch.as_tensor(splits.train_targets)
    sampler: DistributedSampler[TensorDataset] = DistributedSampler(TensorDataset(inputs), seed=0)
    model = DistributedDataParallel(experiment.model(hp), gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=hp["lr"])
    batch, rates, done, epoch = hp["batch_size"], [], 0, 0
    begun = last = time.perf_counter()
    step_at = 0
    while True:
        sampler.set_epoch(epoch)
        order = torch.as_tensor(list(sampler))
        for start in range(0, len(order) - batch + 1, batch):
            chosen = order[start : start + batch]
            optimizer.zero_grad()
            outputs = model(experiment.augment(inputs[chosen], hp))
            nn.functional.cross_entropy(outputs, targets[chosen]).backward()
            optimizer.step()
            done += 1
            now = time.perf_counter()
            if done == WARM_STEPS:
                begun = last = now
                step_at = done
            elif done > WARM_STEPS and now - last >= 1.0:
                rates.append((done - step_at) * batch * dist.get_world_size() / (now - last))
                last, step_at = now, done
        epoch += 1
        over = torch.tensor([float(time.perf_counter() - begun > seconds)])
        dist.all_reduce(over)
        if over.item():
            break
        last, step_at = time.perf_counter(), done
    if dist.get_rank() == 0:
        print(median(rates), flush=True)
    dist.barrier()
    os._exit(0)


if __name__ == "__main__":
    main()
