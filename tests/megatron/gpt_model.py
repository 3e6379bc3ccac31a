"""The model of the Megatron program, its data-parallel wrapper, and its optimizer.

1. The flags become a TransformerConfig; layers come from Megatron's local specs.
2. `model_of` gives a wrapped chunk for each virtual pipeline stage, `optimizer_of` the optimizer
   and the schedule of its learning rate.
3. `connect` sets the callables that Megatron's schedules look for.

    config = config_of(flags)
    model = model_of(flags, config)
"""

import torch
from megatron.core import parallel_state, tensor_parallel
from megatron.core.distributed import (
    DistributedDataParallel,
    DistributedDataParallelConfig,
    finalize_model_grads,
)
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import (
    get_gpt_layer_local_spec,
    get_gpt_mtp_block_spec,
)
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler
from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.module import Float16Module
from megatron.core.transformer.transformer_block import (
    TransformerBlockSubmodules,
    get_num_layers_to_build,
)


class Norm(torch.nn.LayerNorm):
    """Megatron's own wrapper of it refuses sequence parallelism; this says to reduce its gradients.

    Under sequence parallelism each rank sees a part of the sequence.
    """

    def __init__(self, config, hidden_size, eps=1e-5):
        super().__init__(hidden_size, eps=eps)
        for parameter in self.parameters():
            parameter.sequence_parallel = config.sequence_parallel


def layers_of(flags, config, stage):
    """The spec of a layer, and of the block of them that this rank holds."""
    layer = get_gpt_layer_local_spec(flags.experts, moe_grouped_gemm=False)
    if not flags.sequence_parallel:
        return layer, layer
    layer.submodules.input_layernorm = layer.submodules.pre_mlp_layernorm = Norm
    number = get_num_layers_to_build(config, vp_stage=stage)
    return layer, TransformerBlockSubmodules(layer_specs=[layer] * number, layer_norm=Norm)


def config_of(flags):
    moe, recompute = {}, {}
    if flags.experts:
        losses = flags.balance.split(",")
        moe = {
            "num_moe_experts": flags.experts,
            "moe_router_topk": 2,
            "moe_router_load_balancing_type": losses,
            "moe_aux_loss_coeff": [0.01] * len(losses),
            "moe_z_loss_coeff": flags.z_loss,
            "moe_token_dispatcher_type": flags.dispatcher,
            "moe_router_enable_expert_bias": flags.expert_bias,
            "moe_router_score_function": "sigmoid" if flags.expert_bias else "softmax",
            "expert_model_parallel_size": flags.ep,
            "expert_tensor_parallel_size": flags.tp,
        }
    if flags.recompute == "full":
        recompute = {"recompute_method": "uniform", "recompute_num_layers": 1}
    return TransformerConfig(
        num_layers=flags.layers,
        hidden_size=flags.hidden,
        num_attention_heads=flags.heads,
        num_query_groups=flags.query_groups,
        ffn_hidden_size=2 * flags.hidden,
        gated_linear_unit=flags.gated,
        activation_func=torch.nn.functional.silu if flags.gated else torch.nn.functional.gelu,
        add_bias_linear=not flags.experts and not flags.gated,
        hidden_dropout=flags.dropout,
        attention_dropout=flags.dropout,
        mtp_num_layers=flags.mtp,
        tensor_model_parallel_size=flags.tp,
        pipeline_model_parallel_size=flags.pp,
        virtual_pipeline_model_parallel_size=flags.vpp,
        sequence_parallel=flags.sequence_parallel,
        overlap_p2p_comm=flags.vpp is not None,
        batch_p2p_comm=flags.vpp is None,
        pipeline_dtype=torch.bfloat16 if flags.bf16 else torch.float32,
        params_dtype=torch.bfloat16 if flags.bf16 else torch.float32,
        bf16=flags.bf16,
        recompute_granularity=flags.recompute,
        **moe,
        **recompute,
    )


def chunk(flags, config, stage):
    """The part of the model that this rank holds for one virtual pipeline stage."""
    layer, block = layers_of(flags, config, stage)
    mtp = None
    if flags.mtp:
        mtp = get_gpt_mtp_block_spec(config, layer, use_transformer_engine=False, vp_stage=stage)
    model = GPTModel(
        config,
        block,
        vocab_size=flags.padded_vocabulary,
        max_sequence_length=flags.sequence,
        pre_process=parallel_state.is_pipeline_first_stage(ignore_virtual=False, vp_stage=stage),
        post_process=parallel_state.is_pipeline_last_stage(ignore_virtual=False, vp_stage=stage),
        share_embeddings_and_output_weights=not flags.untie,
        position_embedding_type="rope",
        mtp_block_spec=mtp,
        vp_stage=stage,
    )
    for parameter in model.parameters():
        tensor_parallel.set_defaults_if_not_set_tensor_model_parallel_attributes(parameter)
    model.cuda(torch.cuda.current_device())
    return Float16Module(config, model) if flags.bf16 else model


def model_of(flags, config):
    ddp = DistributedDataParallelConfig(
        grad_reduce_in_fp32=True,
        overlap_grad_reduce=flags.overlap,
        overlap_param_gather=flags.overlap and flags.distributed_optimizer,
        use_distributed_optimizer=flags.distributed_optimizer,
        bucket_size=flags.bucket,
    )
    stages = [None] if flags.vpp is None else range(flags.vpp)
    return [
        DistributedDataParallel(config, ddp, chunk(flags, config, stage), disable_bucketing=later)
        for later, stage in enumerate(stages)
    ]


def optimizer_of(flags, model):
    config = OptimizerConfig(
        optimizer="adam",
        lr=flags.lr,
        min_lr=flags.lr / 10,
        weight_decay=0.1,
        bf16=flags.bf16,
        params_dtype=torch.bfloat16 if flags.bf16 else torch.float32,
        use_distributed_optimizer=flags.distributed_optimizer,
        overlap_param_gather=flags.overlap and flags.distributed_optimizer,
        clip_grad=flags.clip_grad,
        log_num_zeros_in_grad=flags.count_zeros,
    )
    optimizer = get_megatron_optimizer(config, model)
    samples = flags.steps * flags.global_batch
    scheduler = OptimizerParamScheduler(
        optimizer,
        init_lr=0.0,
        max_lr=flags.lr,
        min_lr=flags.lr / 10,
        lr_warmup_steps=flags.global_batch,
        lr_decay_steps=max(samples, 2 * flags.global_batch),
        lr_decay_style="cosine",
        start_wd=0.1,
        end_wd=0.1,
        wd_incr_steps=samples,
        wd_incr_style="constant",
    )
    return optimizer, scheduler


def connect(config, model, optimizer):
    """The callables that Megatron's schedules look for in its configuration."""
    config.grad_scale_func = optimizer.scale_loss
    config.finalize_model_grads_func = finalize_model_grads
    one = len(model) == 1
    ddp = model[0].ddp_config
    if ddp.overlap_grad_reduce:
        config.no_sync_func = model[0].no_sync if one else [part.no_sync for part in model]
    if ddp.overlap_param_gather and not one:
        config.param_sync_func = [part.start_param_sync for part in model]
