"""Train a small GPT with Megatron Core, as its users write it: no recorder is known here.

1. The flags say the layout; the stand-in lets Megatron run without a GPU.
2. The model is built from local layer specs, a chunk for each virtual pipeline stage, inside
   Megatron's data-parallel wrapper; its optimizer and its scheduler follow.
3. Each step runs Megatron's schedule over the microbatches, then the optimizer. The last rank
   prints the losses and the norm by their bits, every rank a digest of its weights in the end.

    python gpt_program.py --steps 6
    torchrun --nproc-per-node 4 gpt_program.py --tp 2 --distributed-optimizer --steps 6
"""

import argparse
import hashlib
import os
import random
import sys
from functools import partial
from pathlib import Path

import standin

standin.install()

import gpt_checkpoint  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from gpt_flags import flags_of  # noqa: E402
from gpt_model import config_of, connect, model_of, optimizer_of  # noqa: E402
from megatron.core import parallel_state, tensor_parallel  # noqa: E402
from megatron.core.pipeline_parallel import get_forward_backward_func  # noqa: E402
from megatron.core.transformer.moe.moe_utils import track_moe_metrics  # noqa: E402
from megatron.core.transformer.multi_token_prediction import MTPLossLoggingHelper  # noqa: E402
from torch.utils.data import DataLoader, Dataset  # noqa: E402


class Text(Dataset):
    """The bytes of a file, cut into sequences, in an order that the seed shuffles each epoch."""

    def __init__(self, path, length, seed):
        self.bytes = torch.tensor(list(Path(path).read_bytes()), dtype=torch.long)
        self.length, self.seed = length, seed
        self.sequences = (len(self.bytes) - 1) // length

    def __len__(self):
        return 1 << 30  # epochs go on

    def __getitem__(self, sample):
        epoch, place = divmod(sample, self.sequences)
        order = np.random.RandomState(self.seed + epoch).permutation(self.sequences)
        start = int(order[place]) * self.length
        piece = self.bytes[start : start + self.length + 1]
        return {"tokens": piece[:-1], "labels": piece[1:]}


def samples_of_this_rank(consumed, micro):
    """Indices of one microbatch after another: each data-parallel rank has its part."""
    rank = parallel_state.get_data_parallel_rank()
    ranks = parallel_state.get_data_parallel_world_size()
    while True:
        start = consumed + rank * micro
        yield list(range(start, start + micro))
        consumed += ranks * micro


def loader(flags, consumed):
    """An iterator over microbatches; drawing nothing from the global generator."""
    data = Text(flags.text, flags.sequence, flags.seed)
    sampler = samples_of_this_rank(consumed, flags.micro_batch)
    return iter(DataLoader(data, batch_sampler=sampler, generator=torch.Generator()))


def initialize(flags):
    os.environ.setdefault("MASTER_ADDR", "localhost")
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    else:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=flags.tp,
        pipeline_model_parallel_size=flags.pp,
        virtual_pipeline_model_parallel_size=flags.vpp,
        expert_model_parallel_size=flags.ep,
    )
    random.seed(flags.seed)
    np.random.seed(flags.seed)
    torch.manual_seed(flags.seed)
    tensor_parallel.model_parallel_cuda_manual_seed(flags.seed)


def forward_step(vocabulary, batches, model):
    batch = next(batches)
    tokens, labels = batch["tokens"].cuda(), batch["labels"].cuda()
    length = tokens.shape[1]
    positions = torch.arange(length, device="cuda").expand_as(tokens)
    mask = torch.ones(1, 1, length, length, dtype=torch.bool, device="cuda").triu(1)
    assert int(tokens.max()) < vocabulary
    losses = model(tokens, positions, mask, labels=labels)
    return losses, loss_of


def loss_of(losses):
    total = losses.float().sum()
    tokens = torch.tensor(losses.numel(), dtype=torch.int, device="cuda")
    report = torch.stack([total.detach(), tokens.float()])
    return total, tokens, {"lm loss": report}


def train_step(flags, step, batches, model, optimizer, scheduler):
    """One step: its losses by name (of the last pipeline stage only), and the gradient's norm."""
    for part in model:
        part.zero_grad_buffer()
    optimizer.zero_grad()
    reports = step(
        forward_step_func=partial(forward_step, flags.vocabulary),
        data_iterator=batches if len(model) > 1 else batches[0],
        model=model if len(model) > 1 else model[0],
        num_microbatches=flags.microbatches,
        seq_length=flags.sequence,
        micro_batch_size=flags.micro_batch,
        forward_only=False,
    )
    updated, norm, zeros = optimizer.step()
    if updated:
        scheduler.step(increment=flags.global_batch)
    return losses_of(flags, reports), norm, zeros


def losses_of(flags, reports):
    losses = {}
    if reports:
        total = torch.stack([report["lm loss"] for report in reports]).sum(0)
        dist.all_reduce(total, group=parallel_state.get_data_parallel_group())
        losses["lm loss"] = total[0] / total[1]
    scale = 1 / flags.microbatches
    if flags.experts:
        names = {"aux_loss": "load_balancing_loss", "seq_aux_loss": "seq_load_balancing_loss"}
        names["global_aux_loss"] = "global_load_balancing_loss"
        tracked = [names[name] for name in flags.balance.split(",")]
        track_moe_metrics(
            scale,
            0,
            total_loss_dict=losses,
            force_initialize=True,
            track_names=tracked + ["z_loss"] * bool(flags.z_loss),
            num_layers=flags.layers,
            mtp_num_layers=flags.mtp,
        )
    if flags.mtp:
        MTPLossLoggingHelper.track_mtp_metrics(scale, 0, None, total_loss_dict=losses)
    return losses


def say(*words):
    """One write for the whole line: ranks share the output."""
    sys.stdout.write(" ".join(words) + "\n")
    sys.stdout.flush()


def main():
    flags = flags_of(argparse.ArgumentParser(description=__doc__.splitlines()[0]))
    initialize(flags)
    config = config_of(flags)
    model = model_of(flags, config)
    optimizer, scheduler = optimizer_of(flags, model)
    connect(config, model, optimizer)
    first = 0
    if flags.load:
        first = gpt_checkpoint.load(flags.load, flags, model, optimizer, scheduler)
    batches = [loader(flags, first * flags.global_batch) for _ in model]
    run = get_forward_backward_func()
    last = dist.get_rank() == dist.get_world_size() - 1
    for part in model:
        part.train()
    for number in range(first + 1, flags.steps + 1):
        losses, norm, zeros = train_step(flags, run, batches, model, optimizer, scheduler)
        if last:
            words = [f"{name} {float(value).hex()}" for name, value in sorted(losses.items())]
            say(f"step {number}:", *words, f"norm {float(norm).hex()}", f"zeros {zeros}")
        if flags.save and number == flags.save_at:
            gpt_checkpoint.save(flags.save, flags, number, model, optimizer, scheduler)
    digest = hashlib.sha256()
    for part in model:
        if flags.overlap and flags.distributed_optimizer:
            part.start_param_sync(force_sync=True)
        for parameter in part.parameters():
            digest.update(parameter.detach().contiguous().view(torch.uint8).numpy())
    say(f"rank {dist.get_rank()}: weights {digest.hexdigest()[:16]}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
