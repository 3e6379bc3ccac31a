"""The model under FSDP2, in this process alone, with bf16 compute."""

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from model_helpers import DRAW, build, same_bits, tiny_config, tokens
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from bitstep.train.model.config import ModelConfig
from bitstep.train.model.hybrid import HybridModel


@pytest.fixture
def group() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def shard(model: HybridModel) -> HybridModel:
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    mesh = dist.device_mesh.init_device_mesh("cpu", (1,))
    for unit in model.units():
        fully_shard(unit, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    return model


CONFIG = tiny_config(pattern="M*E-", dropout=0.1, mtp_depth=2, mtp_pattern="*E")


def run(model: HybridModel) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    out = model(tokens(CONFIG), DRAW)
    out["total"].backward()
    grads = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    return out, {n: g.full_tensor() if isinstance(g, DTensor) else g for n, g in grads.items()}


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize("recompute", [False, True])
def test_equals_the_model_cast_to_bf16(recompute: bool) -> None:
    plain = build(CONFIG).to(torch.bfloat16)
    for mine, bias in zip(plain.expert_biases(), build(CONFIG).expert_biases(), strict=True):
        assert same_bits(mine.float(), bias)
    expected, expected_grads = run(plain)
    out, grads = run(shard(build(CONFIG, recompute=recompute)))
    assert all(same_bits(expected[name], out[name]) for name in expected)
    assert set(grads) == set(expected_grads)
    for name, grad in grads.items():
        assert grad.dtype == torch.float32
        assert same_bits(grad, expected_grads[name].float()), name


@pytest.mark.usefixtures("group")
def test_the_expert_bias_stays_float32_and_whole() -> None:
    model = shard(build(CONFIG))
    model(tokens(CONFIG), DRAW)
    for bias in model.expert_biases():
        assert bias.dtype == torch.float32
        assert not isinstance(bias, DTensor)


@pytest.mark.usefixtures("group")
def test_shards_on_meta_are_filled_by_name() -> None:
    with torch.device("meta"):
        model = HybridModel(CONFIG)
    shard(model)
    model.to_empty(device="cpu")
    copy_by_name(model, CONFIG)
    out, _ = run(model)
    expected, _ = run(shard(build(CONFIG)))
    assert all(same_bits(expected[name], out[name]) for name in expected)


def copy_by_name(model: HybridModel, config: ModelConfig) -> None:
    whole = dict(build(config).state_dict())
    with torch.no_grad():
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
            local.copy_(whole[name])
