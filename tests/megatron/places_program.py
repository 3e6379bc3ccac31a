"""Train, save and load the small GPT in several layouts; the logical roots of each, two ways.

1. Every case is a list of flags of the program, with `--load` or `--save`, and runs in turn over
   the same processes. One that loads has the state of the one that saved, and takes no step.
2. The totals of the adapter are added up over the processes; `gathered` finds the same from whole
   tensors. What is damaged on purpose must change the total.
3. The first process writes all of it as JSON.

    torchrun --nproc-per-node 2 places_program.py OUT.json '[["--tp", "2", "--save", "A"]]'
"""

import argparse
import json
import sys

import gpt_program  # before Megatron: it puts the stand-in in place

# isort: split

import gathered
import gpt_checkpoint
import gpt_flags
import gpt_model
import torch
import torch.distributed as dist
from megatron.core import dist_checkpointing, parallel_state
from megatron.core.pipeline_parallel import get_forward_backward_func

from bitstep.adapters.megatron.places import Places, total
from bitstep.errors import FingerprintError


def flags_of(words):
    sys.argv[1:] = words
    return gpt_flags.flags_of(argparse.ArgumentParser())


def initialize(flags):
    """The groups of this layout. Processes meet once: their store remembers where they met."""
    if dist.is_initialized():
        dist.init_process_group = lambda *args, **kwargs: None
    gpt_program.initialize(flags)


def trained_or_loaded(flags):
    """Model and optimizer in the state of this case."""
    config = gpt_model.config_of(flags)
    model = gpt_model.model_of(flags, config)
    optimizer, scheduler = gpt_model.optimizer_of(flags, model)
    gpt_model.connect(config, model, optimizer)
    if flags.load:
        load(flags, model, optimizer, scheduler)
    else:
        batches = [gpt_program.loader(flags, 0) for _ in model]
        for _ in range(flags.steps):
            run = get_forward_backward_func()
            gpt_program.train_step(flags, run, batches, model, optimizer, scheduler)
    if flags.save:
        gpt_checkpoint.save(flags.save, flags, flags.steps, model, optimizer, scheduler)
    return model, optimizer


@torch.no_grad()
def load(flags, model, optimizer, scheduler):
    """Model and optimizer from a checkpoint of any layout; random states have no other layout."""
    state = gpt_checkpoint.sharded(flags, 0, model, optimizer, scheduler, loading=True)
    del state["rng_state"]
    if flags.ep > 1 and flags.load in WHOLE:
        del state["optimizer"]
    loaded = dist_checkpointing.load(state, flags.load)
    for name, part in gpt_checkpoint.chunks(model):
        part.load_state_dict(loaded[name])
    if flags.ep > 1 and flags.load in WHOLE:
        fill(flags, model, optimizer, WHOLE[flags.load]["optimizer"])
    else:
        optimizer.load_state_dict(loaded["optimizer"])


WHOLE = {}
"""What was saved, as whole tensors, by folder."""


def fill(flags, model, optimizer, whole):
    """The moments of each whole parameter, by hand: with expert parallelism there is an optimizer
    more, and Megatron refuses the state of one that had none."""
    gpt_checkpoint.loadable(optimizer)  # it makes them
    states = {k: v for one in optimizer.chained_optimizers for k, v in one.optimizer.state.items()}
    for name, parameter in gathered.bare(model[0]).named_parameters():
        where, main = gathered.logical(flags, 0, name), getattr(parameter, "main_param", parameter)
        own = {**states[main], **({} if main is parameter else {"master": main.data})}
        for key, value in own.items():
            saved = whole[where, f"state.{key}"].view(-1)
            value.view(-1)[: saved.numel()] = saved  # padding is not in it


def streams(places):
    return {
        "params": list(places.parameters()),
        "optimizer": list(places.moments()),
        "grads": list(places.gradients(reduced=True)),
        "buffers": list(places.buffers()),
    }


def over_processes(number):
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, number)
    return everyone


def summed(pieces):
    return sum(over_processes(total(pieces))) % 2**64


def counted(pieces):
    return sum(over_processes(sum(piece.tensor.nbytes for piece in pieces if piece.main)))


def names(pieces):
    """Of all that is counted on any process."""
    own = {f"{piece.name} {piece.slot}" for of in pieces.values() for piece in of if piece.main}
    return sorted(set().union(*over_processes(own)))


def case(words):
    flags = flags_of(words)
    initialize(flags)
    model, optimizer = trained_or_loaded(flags)
    places, refusal = None, ""
    try:
        places = Places(model, optimizer, flags.vocabulary)
    except FingerprintError as error:
        refusal = str(error)
    refusals = over_processes(refusal)
    if any(refusals):
        parallel_state.destroy_model_parallel()
        return {"refused": refusals}
    whole = gathered.collect(flags, model, optimizer)
    if flags.save and flags.ep == 1:
        WHOLE[flags.save] = whole
    pieces = streams(places)
    found = {
        "adapter": {stream: summed(of) for stream, of in pieces.items()},
        "gathered": {stream: gathered.root(of) for stream, of in whole.items()},
        "bytes": {stream: counted(of) for stream, of in pieces.items()},
        "whole bytes": {stream: gathered.nbytes(of) for stream, of in whole.items()},
        "unplaced": sum(over_processes(len(places.unplaced))),
        "names": names(pieces),
        "whole names": sorted({" ".join(key) for of in whole.values() for key in of}),
    }
    found["damaged"] = damaged(places, pieces["params"])
    parallel_state.destroy_model_parallel()
    return found


def damaged(places, pieces):
    """The totals of the parameters after each kind of damage, which is taken back again."""
    found, main = {}, [piece for piece in pieces if piece.main]
    # The last process that counts anything: with copies only the first does.
    holders = [rank for rank, count in enumerate(over_processes(len(main))) if count]
    hurt = main if dist.get_rank() == holders[-1] else []
    for piece in hurt[-1:]:
        flip(piece.tensor)
    found["bit"] = summed(places.parameters())
    for piece in hurt[-1:]:
        flip(piece.tensor)
    found["doubled"] = summed([*pieces, *hurt[:1]])
    found["doubled bytes"] = counted([*pieces, *hurt[:1]])
    experts = [piece for piece in hurt if "local_experts" in piece.name and "fc2" in piece.name]
    swap(*(piece.tensor for piece in experts[:2]))
    found["swapped"] = summed(places.parameters())
    swap(*(piece.tensor for piece in experts[:2]))
    found["taken back"] = summed(places.parameters())
    return found


def flip(tensor):
    """The lowest bit of the last element."""
    tensor.view(-1)[-1:].view(torch.uint8)[0] ^= 1


def swap(*pair):
    if pair:
        one, other = pair
        kept = one.clone()
        one.copy_(other)
        other.copy_(kept)


def main():
    out, cases = sys.argv[1], json.loads(sys.argv[2])
    found = [case(words) for words in cases]
    if dist.get_rank() == 0:
        with open(out, "w") as file:
            json.dump(found, file)


if __name__ == "__main__":
    main()
