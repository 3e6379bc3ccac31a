"""The mixture of experts against naive loops and against transformers."""

import pytest
import torch
from model_helpers import fill, random, same_bits, tiny_config
from transformers.models.nemotron_h.configuration_nemotron_h import NemotronHConfig
from transformers.models.nemotron_h.modeling_nemotron_h import NemotronHMoE

from bitstep.train.model.config import ModelConfig
from bitstep.train.model.experts import Experts, take_rows


def block(config: ModelConfig) -> Experts:
    experts = Experts(config)
    fill(experts, config, "blocks.2.mixer.")
    with torch.no_grad():
        for parameter in experts.parameters():
            parameter.mul_(10)
    return experts


def naive(experts: Experts, x: torch.Tensor) -> torch.Tensor:
    """One token, one expert at a time."""
    tokens = x.reshape(-1, x.shape[-1])
    routing = experts.router(tokens)
    rows = []
    for t in range(len(tokens)):
        row = torch.zeros_like(tokens[t])
        for e, weight in zip(routing.experts[t].tolist(), routing.weights[t], strict=True):
            row = row + weight * experts.experts[e](tokens[t])
        rows.append(row + experts.shared(tokens[t]))
    return torch.stack(rows).view_as(x)


@pytest.mark.parametrize("k", [1, 2, 5])
@pytest.mark.parametrize("score", ["softmax", "sigmoid"])
def test_equals_the_naive_loops_forward_and_backward(k: int, score: str) -> None:
    experts = block(tiny_config(top_k=k, score=score))
    x = random(2, 7, 16).requires_grad_()
    y = x.detach().clone().requires_grad_()
    (experts(x)[0].square().sum()).backward()
    mine = [p.grad for p in experts.parameters()]
    experts.zero_grad()
    naive(experts, y).square().sum().backward()
    torch.testing.assert_close(experts(x)[0], naive(experts, y), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(x.grad, y.grad, rtol=1e-4, atol=1e-5)
    for a, b in zip(mine, (p.grad for p in experts.parameters()), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_equals_transformers() -> None:
    config = tiny_config(score="sigmoid")
    ours = block(config)
    theirs = NemotronHMoE(
        NemotronHConfig(
            hidden_size=16,
            n_routed_experts=5,
            num_experts_per_tok=2,
            moe_intermediate_size=7,
            moe_shared_expert_intermediate_size=9,
            layers_block_type=["moe"],
        )
    )
    with torch.no_grad():
        ours.router.expert_bias.copy_(0.1 * random(5, seed=8))
        theirs.gate.weight.copy_(ours.router.weight)
        theirs.gate.e_score_correction_bias.copy_(ours.router.expert_bias)
        for e, expert in enumerate(ours.experts):
            theirs.experts.up_proj[e] = expert.up.weight
            theirs.experts.down_proj[e] = expert.down.weight
        theirs.shared_experts.up_proj.weight.copy_(ours.shared.up.weight)
        theirs.shared_experts.down_proj.weight.copy_(ours.shared.down.weight)
    x = random(2, 7, 16)
    torch.testing.assert_close(ours(x)[0], theirs(x), rtol=1e-5, atol=1e-6)


def test_an_expert_without_tokens_is_not_run_and_has_no_gradient() -> None:
    experts = block(tiny_config())
    experts.router.expert_bias.copy_(torch.tensor([0.0, -9.0, 9.0, 0.0, -9.0]))
    ran = []
    for e, expert in enumerate(experts.experts):
        expert.register_forward_hook(lambda *_, e=e: ran.append(e))
    mixed, routed = experts(random(2, 7, 16))
    mixed.sum().backward()
    assert routed["counts"].tolist()[1] == routed["counts"].tolist()[4] == 0
    assert ran == [0, 2, 3]
    idle = [e for e in range(5) if experts.experts[e].up.weight.grad is None]
    assert idle == [1, 4]


def test_all_tokens_on_the_same_experts_is_right() -> None:
    experts = block(tiny_config())
    experts.router.expert_bias.copy_(torch.tensor([0.0, 0.0, 9.0, 8.0, 0.0]))
    x = random(2, 7, 16)
    assert experts(x)[1]["counts"].tolist() == [0, 0, 14, 14, 0]
    torch.testing.assert_close(experts(x)[0], naive(experts, x), rtol=1e-5, atol=1e-6)


def test_one_token_is_right() -> None:
    experts = block(tiny_config())
    x = random(1, 1, 16)
    torch.testing.assert_close(experts(x)[0], naive(experts, x), rtol=1e-5, atol=1e-6)


def test_repeats_have_equal_bits_in_bf16() -> None:
    experts = block(tiny_config()).to(torch.bfloat16)
    x = random(2, 30, 16).to(torch.bfloat16)
    mixed, routed = experts(x)
    again, routed_again = experts(x)
    assert mixed.dtype == torch.bfloat16
    assert same_bits(mixed, again)
    assert all(same_bits(routed[name], routed_again[name]) for name in routed)


def test_no_operation_forward_or_backward_adds_by_index() -> None:
    experts = block(tiny_config())
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, acc_events=True) as profile:
        mixed, routed = experts(random(2, 7, 16).requires_grad_())
        (mixed.sum() + routed["balance"] + routed["z"]).backward()
    names = {event.key for event in profile.key_averages()}
    assert "aten::index_select" in names
    adding = ("scatter", "index_add", "index_put", "topk", "cumsum", "histc", "bincount")
    assert not [name for name in names if any(word in name for word in adding)]


def test_rows_come_back_with_the_gradient_of_all_their_copies() -> None:
    x = random(3, 2, dtype=torch.float64).requires_grad_()
    order = torch.tensor([4, 1, 0, 5, 3, 2])
    assert torch.equal(take_rows(x, order // 2, order.argsort()), x[order // 2])
    assert torch.autograd.gradcheck(lambda x: take_rows(x, order // 2, order.argsort()), (x,))


def test_gradients_are_those_of_finite_differences() -> None:
    experts = block(tiny_config()).double()
    x = random(1, 4, 16, dtype=torch.float64).requires_grad_()

    def run(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        mixed, routed = experts(x)
        return mixed, routed["balance"], routed["z"]

    assert torch.autograd.gradcheck(run, (x,), fast_mode=True)
