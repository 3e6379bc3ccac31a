"""The training state of the small GPT as whole tensors, put together by hand, and their roots.

1. Every process says what it holds, by the names of its modules; nothing of the adapter is used.
2. `Whole` puts the shards of tensor, pipeline, expert and data-parallel ranks together, by rules
   that are written out here for this model. Copies must be equal, bit by bit.
3. `root` adds up what the NumPy definition says about each whole tensor.

    whole = collect(flags, model, optimizer)      # on every process
    root(whole["params"])
"""

import math
import re

import torch
import torch.distributed as dist
from megatron.core import parallel_state as ranks

from bitstep.fingerprint.definition import sum_of
from bitstep.fingerprint.logical import contribution

COLUMNS = re.compile(
    r"linear_(qkv|fc1)\.(weight|bias)$|(word_embeddings|output_layer|eh_proj)\.weight$"
)
ROWS = re.compile(r"linear_(proj|fc2)\.weight$")
NAMES_ELSEWHERE = (
    (".input_layernorm.", ".self_attention.linear_qkv.layer_norm_"),
    (".pre_mlp_layernorm.", ".mlp.linear_fc1.layer_norm_"),
)


def collect(flags, model, optimizer):
    """Stream -> (name, slot) -> whole tensor."""
    held = {"params": {}, "optimizer": {}, "grads": {}, "buffers": {}}
    for number, part in enumerate(model):
        chunk = bare(part)
        gradients, values = whole_buffers(part, "grad_data"), whole_buffers(part, "param_data")
        moments = whole_moments(part, optimizer)
        for name, parameter in chunk.named_parameters():
            where = logical(flags, number, name)
            if is_copy(flags, name):
                continue
            # A gather that is still to come leaves all but the own shard as it was.
            held["params"][where, "param"] = values.get(parameter, parameter).detach().clone()
            held["grads"][where, "grad"] = gradients[parameter]
            for key, value in moments[parameter].items():
                held["optimizer"][where, f"state.{key}"] = value
        for name, buffer in chunk.named_buffers():
            if name.endswith("expert_bias"):
                held["buffers"][logical(flags, number, name), "buffer"] = buffer.clone()
    everyone = [None] * dist.get_world_size()
    place = ranks.get_tensor_model_parallel_rank(), ranks.get_expert_tensor_parallel_rank()
    dist.all_gather_object(everyone, (place, held))
    return {stream: put_together(flags, everyone, stream) for stream in held}


def bare(part):
    while hasattr(part, "module"):
        part = part.module
    return part


def logical(flags, chunk, name):
    """The name of the whole tensor: layers and experts are numbered over all processes."""
    stages = ranks.get_pipeline_model_parallel_world_size()
    stage = ranks.get_pipeline_model_parallel_rank()
    per_chunk = flags.layers // (stages * (flags.vpp or 1))
    first = (chunk * stages + stage) * per_chunk
    name = re.sub(
        r"^decoder\.layers\.(\d+)", lambda at: f"decoder.layers.{int(at[1]) + first}", name
    )
    if flags.experts:
        before = ranks.get_expert_model_parallel_rank() * (flags.experts // flags.ep)
        name = re.sub(
            r"local_experts\.(\d+)", lambda at: f"local_experts.{int(at[1]) + before}", name
        )
    for own, elsewhere in NAMES_ELSEWHERE:
        name = name.replace(own, elsewhere)
    return f"GPTModel.{name}"


def is_copy(flags, name):
    """Whether a later stage has this only as a copy of the first stage's embedding."""
    if ranks.get_pipeline_model_parallel_rank() == 0:
        return False
    return name.startswith("embedding.") or (name == "output_layer.weight" and not flags.untie)


def put_together(flags, everyone, stream):
    shards = {}
    for (rank, expert_rank), held in everyone:
        for (name, slot), tensor in held[stream].items():
            own = expert_rank if "local_experts" in name else rank
            copies = shards.setdefault((name, slot), {})
            if own in copies:
                assert same_bits(copies[own], tensor), f"copies of {name} {slot} differ"
            copies.setdefault(own, tensor)
    return {
        key: joined(flags, key[0], [found[rank] for rank in sorted(found)])
        for key, found in shards.items()
    }


def same_bits(a, b):
    return torch.equal(
        a.contiguous().view(-1).view(torch.uint8), b.contiguous().view(-1).view(torch.uint8)
    )


def joined(flags, name, shards):
    """The shards of all tensor-parallel ranks as one tensor, without padding."""
    if shards[0].dim() == 0 or not (COLUMNS.search(name) or ROWS.search(name)):
        assert all(same_bits(shard, shards[0]) for shard in shards), f"copies of {name} differ"
        return shards[0]
    if ROWS.search(name):
        return torch.cat(shards, 1)
    if flags.gated and "linear_fc1.weight" in name:
        # Each rank has a part of the gate, then a part of what it multiplies.
        gates, values = zip(*(shard.chunk(2) for shard in shards), strict=True)
        return torch.cat([*gates, *values])
    whole = torch.cat(shards)
    return whole[: flags.vocabulary] if "embeddings" in name or "output_layer" in name else whole


def whole_buffers(part, kind):
    """Parameter -> its part of these buffers, put together from all that own some of it."""
    found = {}
    for buffer in part.buffers + part.expert_parallel_buffers:
        for bucket in buffer.buckets:
            data = getattr(bucket, kind)
            if part.ddp_config.use_distributed_optimizer:
                group, own = buffer.data_parallel_group, buffer.data_parallel_group.rank()
                pieces = [torch.empty_like(shard) for shard in data.chunk(group.size())]
                dist.all_gather(pieces, data.chunk(group.size())[own].clone(), group=group)
                data = torch.cat(pieces)
            for parameter in bucket.params if data is not None else ():
                start, end, _ = buffer.param_index_map[parameter]
                flat = data[start - bucket.offset : end - bucket.offset]
                found[parameter] = flat.clone().view(parameter.shape)
    return found


def whole_moments(part, optimizer):
    """Parameter -> what the optimizer keeps for it, of all data-parallel ranks."""
    found = {}
    for one in optimizer.chained_optimizers:
        if hasattr(one, "get_parameter_state_dp_zero"):
            found |= gathered_by_megatron(one)
        else:
            for parameter in part.parameters():
                main = getattr(parameter, "main_param", parameter)
                if main in one.optimizer.state:
                    found[parameter] = {k: v.clone() for k, v in one.optimizer.state[main].items()}
                    if main is not parameter:
                        found[parameter]["master"] = main.detach().clone()
    return found


def gathered_by_megatron(optimizer):
    """The same of a distributed optimizer, from what Megatron gathers for a checkpoint."""
    found = {}
    gathered = optimizer.get_parameter_state_dp_zero(use_gloo_comm=False, return_on_all_ranks=True)
    step = next(iter(optimizer.optimizer.state.values()))["step"]
    for number, buffer in enumerate(optimizer.buffers):
        (state,) = gathered[number].values()
        before = 0
        for bucket in buffer.buckets:
            for parameter in bucket.params:
                start = buffer.param_index_map[parameter][0] - bucket.offset + before
                own = slice(start, start + parameter.numel())
                kept = {
                    key: state[key][own].view(parameter.shape) for key in ("exp_avg", "exp_avg_sq")
                }
                if parameter.dtype != torch.float32:
                    kept["master"] = state["param"][own].view(parameter.shape)
                found[parameter] = {**kept, "step": step.clone()}
            before += bucket.numel_unpadded
    return found


def root(whole):
    """The logical root of a stream, from whole tensors and the definition."""
    total = 0
    for (name, slot), tensor in whole.items():
        dtype = str(tensor.dtype).removeprefix("torch.")
        data = tensor.contiguous().view(-1).view(torch.uint8).numpy()
        total += contribution(name, slot, dtype, tuple(tensor.shape), sum_of(data))
    return total % 2**64


def nbytes(whole):
    return sum(tensor.element_size() * math.prod(tensor.shape) for tensor in whole.values())
