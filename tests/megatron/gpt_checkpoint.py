"""Save and restore the Megatron program by Megatron's own distributed checkpointing.

1. Model, optimizer, scheduler, random states and the step go into one sharded state dict, with
   the keys and the metadata that Megatron's own training loop gives them.
2. `load` puts them back, and returns the step; samples consumed follow from it.

    save(folder, flags, 3, model, optimizer, scheduler)
    first = load(folder, flags, model, optimizer, scheduler)
"""

import random
from functools import partial
from pathlib import Path

import numpy as np
import torch
from megatron.core import dist_checkpointing, parallel_state, tensor_parallel
from megatron.core.dist_checkpointing.mapping import ShardedObject
from megatron.core.utils import unwrap_model


def metadata_of(flags):
    group = parallel_state.get_data_parallel_group(with_context_parallel=True)
    kept = {"singleton_local_shards": False, "chained_optim_avoid_prefix": True}
    if flags.distributed_optimizer:
        kept["distrib_optim_sharding_type"] = flags.optimizer_sharding
    return kept, {**kept, "dp_cp_group": group}


def random_states():
    """Every generator of this process; sharded by rank, as data-parallel ranks have equal ones."""
    states = {
        "random": random.getstate(),
        "numpy": np.random.get_state(),
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state(),
        "tracker": tensor_parallel.get_cuda_rng_tracker().get_states(),
    }
    shape = [parallel_state.get_pipeline_model_parallel_world_size()]
    place = [parallel_state.get_pipeline_model_parallel_rank()]
    shape.append(parallel_state.get_tensor_model_parallel_world_size())
    place.append(parallel_state.get_tensor_model_parallel_rank())
    replica = parallel_state.get_data_parallel_rank()
    if parallel_state.get_expert_model_parallel_world_size() > 1:
        shape.append(parallel_state.get_data_parallel_world_size())
        place.append(replica)
        replica = 0
    return ShardedObject("rng_state", [states], tuple(shape), tuple(place), replica_id=replica)


def chunks(model):
    """The model chunks of this rank without their wrappers, by their keys in a checkpoint."""
    names = ["model"] if len(model) == 1 else [f"model{number}" for number in range(len(model))]
    return list(zip(names, unwrap_model(model), strict=True))


def loadable(optimizer):
    """Let Megatron's distributed optimizer load what it has saved, also over torch's Adam.

    Version 0.16.1 does so over Transformer Engine's or Apex's only: over torch's it asserts that
    there is a step before the first one, and looks for a step among the loaded moments.
    """
    for part in getattr(optimizer, "chained_optimizers", [optimizer]):
        adam = part.optimizer
        for parameter in (each for group in adam.param_groups for each in group["params"]):
            zeros = [torch.zeros_like(parameter) for _ in range(2)]
            names = ("step", "exp_avg", "exp_avg_sq")
            adam.state[parameter] = dict(zip(names, (torch.tensor(0.0), *zeros), strict=True))
        part._set_main_param_and_optimizer_states = partial(with_step, part)


def with_step(part, parameter, tensors):
    """Megatron's method, given the step that it restored by another way."""
    step = part._get_main_param_and_optimizer_states(parameter)["step"]
    type(part)._set_main_param_and_optimizer_states(part, parameter, {"step": step, **tensors})


def own_steps(optimizer, step):
    """Adam's step for each parameter: Megatron restores one tensor for all, that each counts in.

    Found by comparing a restored run: with one tensor for n parameters, a step counts as n. With
    `dp_reshardable` there is moreover no saved step in it, but the one from before the load.
    """
    for part in getattr(optimizer, "chained_optimizers", [optimizer]):
        for state in part.optimizer.state.values():
            state["step"] = torch.tensor(float(step))


def sharded(flags, step, model, optimizer, scheduler, loading):
    _, metadata = metadata_of(flags)
    if loading and flags.distributed_optimizer:
        loadable(optimizer)
    state = {"iteration": step}
    for name, part in chunks(model):
        state[name] = part.sharded_state_dict(metadata=metadata)
    state["optimizer"] = optimizer.sharded_state_dict(state, is_loading=loading, metadata=metadata)
    state["opt_param_scheduler"] = scheduler.state_dict()
    state["rng_state"] = random_states()
    return state


def save(folder, flags, step, model, optimizer, scheduler):
    """Write everything at this step into the folder."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    torch.distributed.barrier()
    state = sharded(flags, step, model, optimizer, scheduler, loading=False)
    kept, _ = metadata_of(flags)
    dist_checkpointing.save(state, folder, content_metadata=kept)
    torch.distributed.barrier()


@torch.no_grad()  # float32 main parameters are views of the model's own
def load(folder, flags, model, optimizer, scheduler):
    """Put everything back; the step after which the run goes on."""
    state = sharded(flags, 0, model, optimizer, scheduler, loading=True)
    loaded = dist_checkpointing.load(state, folder)
    for name, part in chunks(model):
        part.load_state_dict(loaded[name])
    optimizer.load_state_dict(loaded["optimizer"])
    if flags.own_steps:
        own_steps(optimizer, loaded["iteration"])
    scheduler.load_state_dict(loaded["opt_param_scheduler"])
    states = loaded["rng_state"][0]
    random.setstate(states["random"])
    np.random.set_state(states["numpy"])
    torch.set_rng_state(states["torch"])
    torch.cuda.set_rng_state(states["cuda"])
    tensor_parallel.get_cuda_rng_tracker().set_states(states["tracker"])
    return loaded["iteration"]
