"""What asking Megatron for its places does to a program: collectives, draws, tensors.

1. A bf16 model of experts stands ready to train, with a distributed optimizer; its final norm is
   float32, so that one group of the optimizer has two dtypes.
2. A dispatch mode hears every collective; generators and tensors are compared before and after.
3. The controls: a collective is heard, and `sharded_state_dict` alone does change a tensor.

    python places_probe.py OUT.json
"""

import argparse
import json
import sys

import gpt_program  # before Megatron: it puts the stand-in in place

# isort: split

import gpt_flags
import gpt_model
import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

from bitstep.adapters.megatron.places import Places
from bitstep.observe.streams import random_states

FLAGS = "--experts 4 --expert-bias --gated --bf16 --distributed-optimizer --vocabulary 250"


class Heard(TorchDispatchMode):
    """The names of all collectives that are called."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function.namespace in ("c10d", "_c10d_functional"):
            self.names.append(str(function))
        return function(*args, **kwargs or {})


def everything(model, optimizer):
    """Every tensor of the program: where it is, what it is, and its bits."""
    bare = model[0].module.module
    tensors = [*bare.parameters(), *bare.buffers(), *(p.main_grad for p in bare.parameters())]
    for one in optimizer.chained_optimizers:
        for group in one.optimizer.param_groups:
            tensors += group["params"]
        for state in one.optimizer.state.values():
            tensors += state.values()
    return [
        (t.data_ptr(), str(t.dtype), tuple(t.shape), t._version, t.requires_grad,
         t.detach().contiguous().view(-1).view(torch.uint8).tolist())
        for t in tensors
    ]  # fmt: skip


def keep_float32(chunk):
    """Megatron's wrapper for 16 bits has cast all of it."""
    norm = chunk.module.decoder.final_layernorm
    norm.weight.data, norm.bias.data = norm.weight.data.float(), norm.bias.data.float()
    return chunk


def drawn():
    states = {name: str(found) for name, found in random_states().items()}
    tracker = gpt_program.tensor_parallel.get_cuda_rng_tracker()
    return {**states, **{k: v.tolist() for k, v in tracker.get_states().items()}}


def main():
    out = sys.argv[1]
    sys.argv[1:] = FLAGS.split()
    flags = gpt_flags.flags_of(argparse.ArgumentParser())
    gpt_program.initialize(flags)
    make = gpt_model.chunk
    gpt_model.chunk = lambda *args: keep_float32(make(*args))
    config = gpt_model.config_of(flags)
    model = gpt_model.model_of(flags, config)
    optimizer, _ = gpt_model.optimizer_of(flags, model)
    bare = model[0].module.module

    before, generators = everything(model, optimizer), drawn()
    with Heard() as heard:
        places = Places(model, optimizer, flags.vocabulary)
        pieces = [
            *places.parameters(),
            *places.gradients(reduced=True),
            *places.gradients(reduced=False),
            *places.moments(),
            *places.buffers(),
        ]
    after = everything(model, optimizer)
    with Heard() as control:
        dist.all_reduce(torch.zeros(1))
    found = {
        "pieces": len(pieces),
        "heard": heard.names,
        "heard in the control": control.names,
        "same tensors": after == before,
        "same generators": drawn() == generators,
        "bias": str(bare.decoder.layers[0].mlp.router.expert_bias.dtype),
        "buffers": sorted(piece.name for piece in places.buffers()),
    }
    bare.sharded_state_dict(metadata={})
    found["same tensors in the control"] = everything(model, optimizer) == before
    found["masters"] = masters(places, optimizer, bare.decoder.final_layernorm.weight)
    with open(out, "w") as file:
        json.dump(found, file)


def masters(places, optimizer, norm):
    """What is stepped for the float32 norm: by Megatron's numbers, by its lists, by the places."""
    (one,) = optimizer.chained_optimizers
    group, order = one.model_param_group_index_map[norm]
    by_number = one.optimizer.param_groups[group]["params"][order]
    by_list = dict(zip(one.model_fp32_groups[group], one.shard_fp32_groups[group], strict=True))
    named = {piece.name for piece in places.moments() if piece.slot == "state.master"}
    return {
        "numbers and lists agree": by_number is by_list[norm],
        "the norm has a master": "GPTModel.decoder.final_layernorm.weight" in named,
        "parameters with a master": len(named),
        "of 16 bits": sum(len(group) for group in one.model_float16_groups),
    }


if __name__ == "__main__":
    main()
