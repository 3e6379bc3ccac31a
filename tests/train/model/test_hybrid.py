"""The whole model: what each loss looks at, causality, recomputation, repeats."""

import pytest
import torch
from model_helpers import (
    DRAW,
    build,
    gradients,
    random,
    same_bits,
    tiny_config,
    tokens,
)
from torch.nn import functional as F
from transformers.models.nemotron_h.configuration_nemotron_h import NemotronHConfig
from transformers.models.nemotron_h.modeling_nemotron_h import NemotronHForCausalLM

from bitstep.train.draw import Draw
from bitstep.train.model.hybrid import HybridModel


def logits(model: HybridModel, rows: torch.Tensor, draw: Draw = DRAW) -> list[torch.Tensor]:
    """Outputs of the head: the next token's first, then one per depth."""
    seen: list[torch.Tensor] = []
    handle = model.head.register_forward_hook(lambda _m, _i, out: seen.append(out))
    with torch.no_grad():
        model(rows, draw)
    handle.remove()
    return seen


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_outputs_are_what_is_promised(dtype: torch.dtype) -> None:
    config = tiny_config(pattern="EM*E", mtp_depth=2, mtp_pattern="E")
    out = build(config).to(dtype)(tokens(config), DRAW)
    counts = out.pop("expert_counts")
    assert set(out) == {"loss", "mtp_1", "mtp_2", "load_balancing", "z_loss", "total"}
    assert all(v.dtype == torch.float32 and v.shape == () for v in out.values())
    assert counts.dtype == torch.int64
    assert counts.sum(1).tolist() == [2 * 11 * config.top_k] * 4
    expected = out["loss"] + out["load_balancing"] + out["z_loss"]
    expected = expected + (out["mtp_1"] + out["mtp_2"]) * (config.mtp_weight / 2)
    torch.testing.assert_close(out["total"], expected)


def test_without_experts_there_are_no_counts_and_no_router_losses() -> None:
    config = tiny_config(pattern="M*-")
    out = build(config)(tokens(config), DRAW)
    assert "expert_counts" not in out
    assert out["load_balancing"].item() == out["z_loss"].item() == 0.0


@pytest.mark.parametrize(
    ("name", "coefficient"), [("load_balancing", "balance_loss"), ("z_loss", "z_loss")]
)
def test_each_coefficient_scales_its_own_loss(name: str, coefficient: str) -> None:
    rows = tokens(tiny_config())
    small, large = (build(tiny_config(**{coefficient: value}))(rows, DRAW) for value in (0.25, 1.0))
    assert large[name].item() == 4 * small[name].item() > 0
    assert [n for n in small if not same_bits(small[n], large[n])] == [name, "total"]


def test_biases_come_in_the_order_of_the_counts() -> None:
    config = tiny_config(pattern="EM*E", mtp_depth=2, mtp_pattern="E")
    model = build(config)
    for i, bias in enumerate(model.expert_biases()):
        bias.copy_(9.0 * F.one_hot(torch.tensor(i), 5))
    counts = model(tokens(config), DRAW)["expert_counts"]
    assert counts[torch.arange(4), torch.arange(4)].tolist() == [22] * 4


def test_the_loss_is_of_the_next_token_and_depth_k_of_the_one_k_later() -> None:
    config = tiny_config(mtp_depth=2)
    model = build(config)
    rows = torch.tensor([[3, 1, 4, 1, 5, 9]])  # S = 3
    first, second, third = logits(model, rows)
    out = model(rows, DRAW)

    def nats(scores: torch.Tensor, targets: list[int]) -> float:
        picked = [scores[0, i].log_softmax(-1)[t] for i, t in enumerate(targets)]
        return -sum(p.item() for p in picked) / 3

    assert out["loss"].item() == pytest.approx(nats(first, [1, 4, 1]), rel=1e-6)
    assert out["mtp_1"].item() == pytest.approx(nats(second, [4, 1, 5]), rel=1e-6)
    assert out["mtp_2"].item() == pytest.approx(nats(third, [1, 5, 9]), rel=1e-6)


def changed_positions(model: HybridModel, changed_token: int) -> list[list[int]]:
    rows = tokens(model.config)
    other = rows.clone()
    other[:, changed_token] = (other[:, changed_token] + 1) % model.config.vocabulary
    pairs = zip(logits(model, rows), logits(model, other), strict=True)
    return [(a != b).any(-1).any(0).nonzero().flatten().tolist() for a, b in pairs]


def test_a_later_token_changes_no_earlier_output_of_any_head() -> None:
    model = build(tiny_config(pattern="M*-", mtp_depth=2))  # S = 11
    assert changed_positions(model, 6) == [
        list(range(6, 11)),
        list(range(5, 11)),  # Depth 1 at position i sees token i + 1,
        list(range(4, 11)),  # depth 2 token i + 2.
    ]


def test_experts_leave_it_causal() -> None:
    # An expert's rows are computed together; how many there are may move bits, not meaning.
    model = build(tiny_config(pattern="E*", mtp_depth=0))
    rows = tokens(model.config)
    other = rows.clone()
    other[:, 6] = (other[:, 6] + 1) % model.config.vocabulary
    (before,), (after,) = logits(model, rows), logits(model, other)
    torch.testing.assert_close(before[:, :6], after[:, :6], rtol=1e-6, atol=1e-7)
    assert bool((before[:, 6:] != after[:, 6:]).any(-1).all())


LAYERS = {"M": "linear_attention", "*": "full_attention", "E": "moe", "-": "mlp"}


def test_equals_nemotron_h_of_transformers() -> None:
    sizes = {"mamba_heads": 4, "mamba_head_dim": 8, "mamba_groups": 2}
    config = tiny_config(pattern="M*E-M", mtp_depth=0, init_std=0.2, **sizes)
    model = build(config)
    theirs = NemotronHForCausalLM(
        NemotronHConfig(
            vocab_size=33,
            hidden_size=16,
            layers_block_type=[LAYERS[letter] for letter in config.pattern],
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=3,
            intermediate_size=20,
            ssm_state_size=5,
            mamba_num_heads=4,
            mamba_head_dim=8,
            n_groups=2,
            chunk_size=8,
            n_routed_experts=5,
            num_experts_per_tok=2,
            moe_intermediate_size=7,
            moe_shared_expert_intermediate_size=9,
            layer_norm_epsilon=1e-5,
        )
    ).eval()
    theirs.set_experts_implementation("eager")
    load(theirs, model)
    rows = tokens(config)
    with torch.no_grad():
        expected = theirs(input_ids=rows[:, :11], use_cache=False).logits
    (ours,) = logits(model, rows)
    assert ours.std() > 0.1
    torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-5)


RENAMED = [
    ("mixer.project.weight", "mixer.in_proj.weight"),
    ("mixer.conv_weight", "mixer.conv1d.weight"),
    ("mixer.conv_bias", "mixer.conv1d.bias"),
    ("mixer.query.", "mixer.q_proj."),
    ("mixer.key.", "mixer.k_proj."),
    ("mixer.value.", "mixer.v_proj."),
    ("mixer.router.weight", "mixer.gate.weight"),
    ("mixer.router.expert_bias", "mixer.gate.e_score_correction_bias"),
    ("mixer.shared.", "mixer.shared_experts."),
    (".up.", ".up_proj."),
    (".down.", ".down_proj."),
    ("blocks.", "model.layers."),
    ("embedding.", "model.embeddings."),
    ("head.", "lm_head."),
]


def load(theirs: NemotronHForCausalLM, model: HybridModel) -> None:
    """Copy our tensors into theirs, which stack the experts and lift small steps to a floor."""
    state: dict[str, torch.Tensor] = {}
    for name, value in model.state_dict().items():
        for old, new in RENAMED:
            name = name.replace(old, new)
        name = "model.norm_f.weight" if name == "norm.weight" else name
        state[name] = value.unsqueeze(1) if "conv1d.weight" in name else value
    for kind, layer in (("*", 1), ("M", 0), ("M", 4)):
        out = state.pop(f"model.layers.{layer}.mixer.out.weight")
        state[f"model.layers.{layer}.mixer.{'o_proj' if kind == '*' else 'out_proj'}.weight"] = out
    for part in ("up_proj", "down_proj"):
        stem = "model.layers.2.mixer.experts."
        rows = [state.pop(f"{stem}{e}.{part}.weight") for e in range(5)]
        state[f"{stem}{part}"] = torch.stack(rows)
    theirs.load_state_dict(state)
    for layer in (0, 4):
        theirs.model.layers[layer].mixer.time_step_limit = (0.0, float("inf"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_recomputation_changes_no_bit(dtype: torch.dtype) -> None:
    config = tiny_config(pattern="M*E-ME", dropout=0.2, mtp_depth=2, mtp_pattern="*E")
    results = []
    for recompute in (False, True):
        model = build(config, recompute=recompute).to(dtype)
        out = model(tokens(config), DRAW)
        out["total"].backward()
        results.append((out, gradients(model)))
    (plain, grads), (again, other_grads) = results
    assert all(same_bits(plain[name], again[name]) for name in plain)
    for name, grad in grads.items():
        other = other_grads[name]
        assert (grad is None) == (other is None), name
        assert grad is None or (other is not None and same_bits(grad, other)), name


def test_recomputation_runs_every_block_again() -> None:
    config = tiny_config()
    model = build(config, recompute=True)
    ran: list[str] = []
    for name, module in model.named_modules():
        if name.endswith("mixer"):
            module.register_forward_pre_hook(lambda *_, name=name: ran.append(name))
    out = model(tokens(config), DRAW)
    assert len(ran) == 6
    out["total"].backward()
    assert len(ran) == 12


@pytest.mark.parametrize("threads", [1, 2])
def test_repeats_have_equal_bits(threads: int) -> None:
    config = tiny_config(dropout=0.2, hidden=48)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        results = []
        for _ in range(2):
            model = build(config)
            out = model(tokens(config, length=150), DRAW)
            out["total"].backward()
            results.append((out, gradients(model)))
    finally:
        torch.set_num_threads(before)
    (plain, grads), (again, other_grads) = results
    assert all(same_bits(plain[name], again[name]) for name in plain)
    assert all(same_bits(g, other_grads[n]) for n, g in grads.items() if g is not None)


def test_dropout_changes_the_loss_with_the_draw_and_not_in_evaluation() -> None:
    config = tiny_config(dropout=0.3)
    model, rows = build(config), tokens(config)
    losses = {model(rows, Draw(1, counter, 0))["loss"].item() for counter in range(4)}
    assert len(losses) == 4
    model.eval()
    evaluated = {model(rows, Draw(1, counter, 0))["loss"].item() for counter in range(4)}
    assert evaluated == {build(tiny_config())(rows, DRAW)["loss"].item()}


def test_a_short_row_is_our_mistake() -> None:
    config = tiny_config(mtp_depth=2)
    with pytest.raises(AssertionError, match="a row of 3 tokens is too short for 2 depths"):
        build(config)(torch.zeros(1, 3, dtype=torch.int64), DRAW)


def test_it_learns_a_batch_by_heart() -> None:
    config = tiny_config(hidden=32)
    model, rows = build(config), tokens(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=False)
    losses = []
    for step in range(40):
        out = model(rows, Draw(1, step, 0))
        out["total"].backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(out["loss"].item())
    assert losses[0] == pytest.approx(torch.tensor(33.0).log().item(), rel=0.05)
    assert losses[-1] < losses[0] / 2


def test_gradients_are_those_of_finite_differences() -> None:
    config = tiny_config(init_std=0.3)
    model = build(config).double()
    rows = tokens(config, length=5)
    total = model(rows, DRAW)["total"]
    total.backward()
    step = 1e-6
    for name, parameter in model.named_parameters():
        if parameter.grad is None:
            continue
        direction = random(*parameter.shape, dtype=torch.float64)
        expected = (parameter.grad * direction).sum().item()
        ends = []
        for sign in (1, -1):
            with torch.no_grad():
                parameter.add_(direction, alpha=sign * step)
                ends.append(model(rows, DRAW)["total"].item())
                parameter.sub_(direction, alpha=sign * step)
        assert (ends[0] - ends[1]) / (2 * step) == pytest.approx(expected, rel=1e-4, abs=1e-7), name
