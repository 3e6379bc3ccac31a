"""Routing by hand: ties, weights, counts, losses and the bias."""

import pytest
import torch
from model_helpers import fill, random, same_bits, tiny_config

from bitstep.train.model.router import Router, balance, top_k, update_expert_bias


def router(**changes: object) -> Router:
    config = tiny_config(**changes)
    router = Router(config)
    fill(router, config, "blocks.2.mixer.router.")
    with torch.no_grad():
        router.weight.mul_(30)
    return router


def test_of_equal_scores_the_lower_index_wins() -> None:
    scores = torch.tensor([[1.0, 1.0, 1.0, 1.0], [0.0, 2.0, 0.0, 2.0], [3.0, 0.0, 3.0, 3.0]])
    assert top_k(scores, 2).tolist() == [[0, 1], [1, 3], [0, 2]]
    many = torch.zeros(5, 512)
    assert top_k(many, 3).tolist() == [[0, 1, 2]] * 5


@pytest.mark.parametrize("score", ["softmax", "sigmoid"])
def test_weights_are_the_scores_of_the_chosen_divided_by_their_sum(score: str) -> None:
    r = router(score=score)
    x = random(6, 16)
    out = r(x)
    logits = (x @ r.weight.T).tolist()
    for t, row in enumerate(logits):
        values = torch.tensor(row)
        scores = values.softmax(0) if score == "softmax" else 1 / (1 + torch.exp(-values))
        ranked = sorted(range(5), key=lambda e: (-scores[e].item(), e))[:2]
        assert out.experts[t].tolist() == ranked
        torch.testing.assert_close(out.weights[t], scores[ranked] / scores[ranked].sum())


def test_one_choice_keeps_its_score_so_that_the_router_learns() -> None:
    r = router(top_k=1)
    out = r(random(6, 16))
    assert bool((out.weights < 1).all())
    out.weights.sum().backward()
    assert r.weight.grad is not None
    assert float(r.weight.grad.abs().max()) > 0


def test_counts_are_the_choices_per_expert() -> None:
    out = router()(random(40, 16))
    expected = [int((out.experts == e).sum()) for e in range(5)]
    assert out.counts.tolist() == expected
    assert out.counts.dtype == torch.int64
    assert sum(expected) == 80


def test_the_bias_moves_the_choice_and_not_the_weights() -> None:
    r = router(top_k=5)  # All are chosen: only the order can change.
    x = random(6, 16)
    before = r(x)
    r.expert_bias.copy_(torch.tensor([0.0, 9.0, 0.0, 0.0, 8.0]))
    after = r(x)
    assert after.experts[:, :2].tolist() == [[1, 4]] * 6
    assert before.experts.tolist() != after.experts.tolist()
    for t in range(6):
        old = dict(zip(before.experts[t].tolist(), before.weights[t].tolist(), strict=True))
        new = dict(zip(after.experts[t].tolist(), after.weights[t].tolist(), strict=True))
        assert old == pytest.approx(new, rel=1e-6)
    assert same_bits(before.z, after.z)
    assert same_bits(before.balance, after.balance)


def test_the_bias_has_no_gradient_and_is_a_buffer() -> None:
    r = router()
    assert [name for name, _ in r.named_buffers()] == ["expert_bias"]
    assert r.expert_bias.dtype == torch.float32
    assert not r.expert_bias.requires_grad


def test_balance_is_one_when_even_and_experts_when_collapsed() -> None:
    even = balance(torch.full((8, 4), 0.25), torch.tensor([4, 4, 4, 4]), 2)
    assert even.item() == 1.0
    scores = torch.tensor([[1.0, 0.0, 0.0, 0.0]]).expand(8, 4)
    assert balance(scores, torch.tensor([8, 0, 0, 0]), 1).item() == 4.0


def test_balance_of_sigmoid_scores_uses_their_shares() -> None:
    scores = torch.tensor([[0.9, 0.3], [0.3, 0.1]])
    # Shares 3/4 and 1/4 in both rows; all choices went to expert 0.
    assert balance(scores, torch.tensor([2, 0]), 1).item() == pytest.approx(2 * 0.75)


def test_z_is_the_mean_squared_logsumexp() -> None:
    r = router(experts=2, top_k=1, hidden=1)
    with torch.no_grad():
        r.weight.copy_(torch.tensor([[1.0], [1.0]]))
    x = torch.tensor([[0.0], [1.0]])
    two = torch.tensor(2.0).log().item()
    assert r(x).z.item() == pytest.approx((two**2 + (1 + two) ** 2) / 2)


def test_the_router_computes_in_float32_whatever_comes_in() -> None:
    r = router()
    x = random(6, 16).to(torch.bfloat16)
    narrow = r.to(torch.bfloat16)
    out = narrow(x)
    assert (out.weights.dtype, out.z.dtype, out.balance.dtype) == (torch.float32,) * 3
    wide = router()
    with torch.no_grad():
        wide.weight.copy_(narrow.weight)
    assert same_bits(wide(x.float()).weights, out.weights)


def test_scores_that_vanish_leave_everything_finite() -> None:
    r = router()
    with torch.no_grad():
        r.weight.fill_(-100.0)
    out = r(torch.ones(3, 16))
    (out.weights.sum() + out.balance + out.z).backward()
    assert out.weights.tolist() == [[0.0, 0.0]] * 3
    assert r.weight.grad is not None
    assert all(bool(t.isfinite().all()) for t in (out.balance, out.z, r.weight.grad))


def test_update_moves_every_bias_by_the_rate_towards_the_mean() -> None:
    bias = torch.zeros(4)
    update_expert_bias(bias, torch.tensor([5, 1, 3, 3]), 0.5)
    assert bias.tolist() == [-0.5, 0.5, 0.0, 0.0]
    update_expert_bias(bias, torch.tensor([5, 1, 3, 3]), 0.25)
    assert bias.tolist() == [-0.75, 0.75, 0.0, 0.0]


def test_the_mean_is_exact_where_float32_is_not() -> None:
    # Means of 2^25 + 1/3: in float32 the three counts and their mean are all equal.
    bias = torch.zeros(3)
    update_expert_bias(bias, torch.tensor([2**25, 2**25, 2**25 + 1]), 1.0)
    assert bias.tolist() == [1.0, 1.0, -1.0]


def test_rate_zero_changes_nothing() -> None:
    bias = torch.tensor([0.5, -0.25])
    update_expert_bias(bias, torch.tensor([3, 1]), 0.0)
    assert bias.tolist() == [0.5, -0.25]


def test_gradients_are_those_of_finite_differences() -> None:
    for score in ("softmax", "sigmoid"):
        r = router(score=score).double()

        def run(x: torch.Tensor, r: Router = r) -> tuple[torch.Tensor, ...]:
            out = r(x)
            return out.weights, out.balance, out.z

        x = random(5, 16, dtype=torch.float64).requires_grad_()
        assert torch.autograd.gradcheck(run, (x,), fast_mode=True)
