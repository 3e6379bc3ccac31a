"""Where a step begins and ends, in loops that nobody told about us."""

import threading

import numpy as np
import pytest
import torch
from recording_fakes import Recording, data, recorded, small, train
from torch import nn
from torch.nn.utils import clip_grad_norm_
from torch.utils.data import DataLoader, TensorDataset

from bitstep import observe


def losses(recording):
    return recording.per_step(slot="metric.loss")


def test_every_optimizer_step_is_one_and_the_start_is_step_0(tmp_path):
    model = small()

    def program(_):
        train(model, torch.optim.SGD(model.parameters(), lr=0.1), steps=3)

    found = recorded(tmp_path / "run", program, "step")
    assert list(found.roots) == [0, 1, 2, 3]
    assert losses(found) == [1, 1, 1]
    assert found.complete
    assert found.damage == ()
    assert len(set(found.roots.values())) == 4


def test_accumulated_microbatches_share_a_step(tmp_path):
    model = small()

    def program(_):
        train(model, torch.optim.SGD(model.parameters(), lr=0.1), steps=2, accumulate=3)

    found = recorded(tmp_path / "run", program, "step")
    assert losses(found) == [3, 3]
    assert [row.site.microbatch for row in found.of(step=2, slot="metric.loss")] == [0, 1, 2]
    assert [row.site.microbatch for row in found.of(step=2, slot="batch")] == [0, 1, 2]


def test_what_the_loader_leaves_over_is_a_step_without_an_update(tmp_path):
    model = small()

    def program(_):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        train(model, optimizer, steps=2, accumulate=2)
        model(torch.ones(2, 3)).mean().backward()

    found = recorded(tmp_path / "run", program, "step")
    assert losses(found) == [2, 2, 1]
    assert found.roots[3] == found.roots[2]


def test_optimizers_that_step_one_after_another_share_a_step(tmp_path):
    model = small()

    def program(_):
        optimizers = [torch.optim.SGD(layer.parameters(), lr=0.1) for layer in (model[0], model[2])]
        for batch in data(2):
            model(batch).mean().backward()
            for optimizer in optimizers:
                optimizer.step()
            for optimizer in optimizers:
                optimizer.zero_grad()

    found = recorded(tmp_path / "run", program, "step")
    assert losses(found) == [1, 1]
    assert found.per_step(slot="args.lr") == [2, 2]


def test_both_updates_of_a_gan_are_steps(tmp_path):
    maker, judge = nn.Linear(2, 3), small()

    def program(_):
        first = torch.optim.SGD(judge.parameters(), lr=0.1)
        second = torch.optim.SGD(maker.parameters(), lr=0.1)
        for batch in data(2):
            made = maker(torch.ones(2, 2))
            (judge(batch).mean() - judge(made.detach()).mean()).backward()
            first.step()
            first.zero_grad()
            judge(made).mean().backward()
            second.step()
            second.zero_grad()

    found = recorded(tmp_path / "run", program, "step")
    assert found.steps == [1, 2, 3, 4]
    assert losses(found) == [1, 1, 1, 1]


def test_parameters_written_by_hand_end_a_step(tmp_path):
    model = small()

    def program(_):
        for batch in data(3):
            model(batch).mean().backward()
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter -= 0.1 * parameter.grad
                    parameter.grad = None

    found = recorded(tmp_path / "run", program, "step")
    assert losses(found) == [1, 1, 1]
    assert len(set(found.roots.values())) == 4


def test_a_program_that_tells_its_steps_may_be_written_to_by_anybody(tmp_path):
    """Nothing is inferred from writes; what it draws before its first forward is data."""
    model = small()

    def program(recorder):
        for number, batch in enumerate(data(6)):
            if number % 2 == 0:
                recorder.step(number // 2 + 5)
                batch = batch + torch.rand(2, 3)
            model(batch).mean().backward()
            model[0].weight.detach().numpy()[0, 0] += 1
            if number % 2:
                for parameter in model.parameters():
                    parameter.data -= 0.1 * parameter.grad
                    parameter.grad = None

    found = recorded(tmp_path / "run", program, "op")
    assert found.steps == [5, 6, 7]
    assert losses(found) == [2, 2, 2]
    # Before the first forward of all nothing is known of the state that the first step begins with.
    drawn = [
        len(found.of(step=step, phase="data", op="aten.rand", slot="out.0")) for step in found.roots
    ]
    assert drawn == [1, 0, 1, 1]


@pytest.mark.parametrize("is_attached", [False, True])
def test_a_first_step_that_is_told_before_its_forward_begins_with_the_whole_state(
    tmp_path, is_attached
):
    model = small()

    def program(recorder):
        if is_attached:
            recorder.attach(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for number in (1, 2):
            recorder.step(number)
            train(model, optimizer, steps=1)

    names = ["Sequential.0.weight", "Sequential.0.bias", "Sequential.2.weight", "Sequential.2.bias"]
    found = recorded(tmp_path / "run", program, "phase")
    assert [row.site.module for row in found.of(phase="start", slot="param")] == names
    assert list(found.roots) == [0, 1, 2]


def test_steps_that_are_only_told_are_written(tmp_path):
    def program(recorder):
        for number in (3, 4):
            recorder.step(number)
            recorder.metric("tokens", number)

    found = recorded(tmp_path / "run", program, "step")
    assert list(found.roots) == [0, 3, 4]
    assert found.value(step=4, slot="metric.tokens") == 4


def test_one_step_that_is_only_told_is_written(tmp_path):
    found = recorded(tmp_path / "run", lambda recorder: recorder.step(3), "step")
    assert list(found.roots) == [0, 3]


def test_who_records_is_known_to_the_program(tmp_path):
    assert observe.current() is None

    with observe.record(tmp_path / "run") as recorder:
        assert observe.current() is recorder
    assert observe.current() is None


def test_accumulation_and_an_update_by_hand(tmp_path):
    model = small()

    def program(_):
        for number, batch in enumerate(data(6)):
            model(batch).mean().backward()
            if number % 2:
                with torch.no_grad():
                    for parameter in model.parameters():
                        parameter -= 0.1 * parameter.grad
                        parameter.grad = None

    assert losses(recorded(tmp_path / "run", program, "step")) == [2, 2, 2]


def test_an_update_through_data_ends_a_step(tmp_path):
    """`p.data` has a version counter of its own: that of the parameter stays."""
    model = small()

    def program(_):
        for number, batch in enumerate(data(6)):
            model(batch).mean().backward()
            if number % 2:
                for parameter in model.parameters():
                    parameter.data -= 0.1 * parameter.grad
                    parameter.grad = None

    assert losses(recorded(tmp_path / "run", program, "step")) == [2, 2, 2]


def test_without_any_update_every_backward_is_a_step_in_the_end(tmp_path):
    model = small()

    def program(_):
        for batch in data(70):
            model.zero_grad()
            model(batch).mean().backward()

    found = recorded(tmp_path / "run", program, "step")
    assert sum(losses(found)) == 70
    assert losses(found)[1:] == [1] * (len(found.steps) - 1)
    assert len(found.steps) > 2


def test_a_step_that_the_loss_scaler_skips_is_a_step(tmp_path):
    model = small()

    def program(_):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        for step, batch in enumerate(data(3)):
            loss = model(batch).mean() * (float("inf") if step == 1 else 1.0)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()

    found = recorded(tmp_path / "run", program, "step")
    assert losses(found) == [1, 1, 1]
    assert found.roots[2] == found.roots[1] != found.roots[3]


def test_the_step_that_makes_a_state_dict_is_none(tmp_path):
    from torch.distributed.checkpoint.state_dict import get_state_dict

    model = small()

    def program(_):
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        get_state_dict(model, optimizer)
        train(model, optimizer, steps=2)
        get_state_dict(model, optimizer)
        train(model, optimizer, steps=1)

    found = recorded(tmp_path / "run", program, "step")
    assert losses(found) == [1, 1, 1]
    assert {row.digest for row in found.of(slot="args.lr")} == {
        found.of(step=1, slot="args.lr")[0].digest
    }


def test_evaluation_between_steps_is_no_step_and_no_microbatch(tmp_path):
    model = small()

    def program(_):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            train(model, optimizer, steps=1)
            model.eval()
            with torch.no_grad():
                model(torch.ones(1, 3))
            model.train()

    found = recorded(tmp_path / "run", program)
    assert losses(found) == [1, 1, 0], "what follows the last update"
    assert found.roots[3] == found.roots[2]
    assert found.per_step(slot="batch", module="") == [1, 1, 0]
    assert "aten.addmm" in found.ops(phase="eval", step=2)
    assert set(found.ops(phase="forward", step=2)) >= {"aten.addmm", "aten.relu"}


def test_validation_before_training_opens_nothing_and_belongs_to_step_0(tmp_path):
    model = small().eval()

    def program(_):
        with torch.no_grad():
            model(torch.ones(1, 3))
        assert not (tmp_path / "run").exists()
        model.train()
        train(model, torch.optim.SGD(model.parameters(), lr=0.1), steps=1)

    found = recorded(tmp_path / "run", program)
    assert found.steps == [1]
    assert found.ops(step=0, phase="eval").count("aten.addmm") == 2


def test_a_process_that_never_trains_leaves_no_file(tmp_path):
    from bitstep import observe

    with observe.record(tmp_path / "run"), torch.no_grad():
        small()(torch.ones(1, 3))
    assert not (tmp_path / "run").exists()


def test_the_closures_of_lbfgs_are_microbatches_of_one_step(tmp_path):
    model = small()

    def program(_):
        optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)

        def closure():
            optimizer.zero_grad()
            loss = model(torch.ones(2, 3)).square().mean()
            loss.backward()
            return loss

        for _ in range(2):
            optimizer.step(closure)

    found = recorded(tmp_path / "run", program, "step")
    assert found.steps == [1, 2]
    assert losses(found) == [3, 3]
    assert found.one(step=2, slot="root.optimizer") != found.one(step=1, slot="root.optimizer")


def test_a_function_without_a_module(tmp_path):
    def program(_):
        weight = torch.ones(3, requires_grad=True)
        optimizer = torch.optim.SGD([weight], lr=0.1)
        for batch in data(2):
            (batch @ weight).mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    found = recorded(tmp_path / "run", program, "phase")
    assert losses(found) == [1, 1]
    assert [row.site.module for row in found.of(step=1, slot="param", occurrence=1)] == [
        "optimizer0.0"
    ]
    assert len(set(found.roots.values())) == 3
    assert [row.site.module for row in found.of(step=1, slot="grad", phase="optimizer")] == [
        "optimizer0.0"
    ]


def test_an_optimizer_that_steps_in_another_thread_is_not_recorded_as_ours(tmp_path):
    model = small()

    def program(_):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for batch in data(3):
            model(batch).mean().backward()
            worker = threading.Thread(target=optimizer.step)
            worker.start()
            worker.join()
            optimizer.zero_grad()

    found = recorded(tmp_path / "run", program)
    assert losses(found) == [1, 1, 1], "parameters that were written end a step"
    assert found.of(slot="args.lr") == []


def test_the_program_may_number_its_steps_itself(tmp_path):
    model = small()

    def program(recorder):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for number in (40, 41):
            recorder.step(number)
            train(model, optimizer, steps=2)
            with recorder.phase("checkpoint"):
                torch.ones(1) + 1
            recorder.metric("aux_loss", 0.25)
            recorder.metric("tokens", 12)

    found = recorded(tmp_path / "run", program)
    assert list(found.roots) == [0, 40, 41]
    assert losses(found) == [2, 2]
    assert found.value(step=40, slot="metric.aux_loss") == 0.25
    assert found.value(step=41, slot="metric.tokens") == 12
    assert found.ops(step=41, phase="checkpoint") == ["aten.ones", "aten.add.Tensor"]


def test_the_loss_of_a_microbatch_and_the_norm_are_kept_by_their_bits(tmp_path):
    model, said = small(), []

    def program(_):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for batch in data(2):
            loss = model(batch).square().mean()
            loss.backward()
            norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            optimizer.zero_grad()
            said.append((loss.item(), norm.item()))

    found = recorded(tmp_path / "run", program, "step")
    for step in (1, 2):
        assert found.value(step=step, slot="metric.loss") == said[step - 1][0]
        assert found.value(step=step, slot="metric.grad_norm", phase="clip") == said[step - 1][1]


@pytest.mark.parametrize("foreach", [False, True])
def test_a_loader_belongs_to_the_phase_data_of_the_step_that_it_feeds(tmp_path, foreach):
    model = small()

    def program(_):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=foreach)
        rows = TensorDataset(torch.arange(18.0).reshape(6, 3))
        for (batch,) in DataLoader(rows, batch_size=2, shuffle=True):
            model(batch).mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    found = recorded(tmp_path / "run", program)
    assert losses(found) == [1, 1, 1]
    for step in (0, 2, 3):
        assert "aten.stack" in found.ops(step=step, phase="data"), step
    assert "aten.stack" not in found.ops(phase="optimizer")


def test_a_second_recording_is_a_new_attempt(tmp_path):
    for _ in range(2):
        model = small()
        recorded(
            tmp_path / "run",
            lambda _, model=model: train(model, torch.optim.SGD(model.parameters(), lr=0.1)),
            "step",
        )
    first, second = Recording(tmp_path / "run"), Recording(tmp_path / "run", "attempt-001")
    assert first.roots == second.roots


def test_a_metric_that_is_none_is_said_and_costs_no_level(tmp_path):
    model = small()

    def program(recorder):
        train(model, torch.optim.SGD(model.parameters(), lr=0.1), steps=1)
        recorder.metric("a", np.float32(0.1))
        recorder.metric("b", "text")
        recorder.metric("c", 2**70)
        recorder.metric("d", torch.ones(3))

    found = recorded(tmp_path / "run", program)
    assert found.value(slot="metric.a") == float(np.float32(0.1))
    assert found.one(slot="metric.d").dtype == "float32"
    assert [gap.partition(":")[0] for gap in found.gaps()] == ["metric b", "metric c"]
    assert [row.digest for row in found.of(slot="level")] == [3, 3]


def test_the_norm_is_seen_where_the_function_was_imported_before_us(tmp_path):
    model, norms = small(), []

    def program(_):
        model(torch.ones(2, 3)).mean().backward()
        norms.append(clip_grad_norm_(model.parameters(), 0.1).item())

    found = recorded(tmp_path / "run", program)
    assert found.value(slot="metric.grad_norm", phase="clip") == norms[0]
    assert "aten._foreach_norm.Scalar" in found.ops(phase="clip")
    assert any(op.startswith("aten._foreach_mul_") for op in found.ops(phase="clip"))


def test_the_numbers_of_optimizers_outlive_the_first_of_them(tmp_path):
    def program(_):
        weights = [torch.ones(3, requires_grad=True) for _ in range(2)]
        first = torch.optim.SGD(weights[:1], lr=0.1)
        second = torch.optim.SGD(weights[1:], lr=0.1)
        (weights[0] * weights[1]).sum().backward()
        first.step()
        del first
        for _ in range(2):
            (weights[0] * weights[1]).sum().backward()
            second.step()

    found = recorded(tmp_path / "run", program, "phase")
    rows = found.of(step=3, slot="param", occurrence=1)
    assert [row.site.module for row in rows] == ["optimizer1.0"]


def test_backwards_of_no_module_at_all_are_steps_in_the_end(tmp_path):
    def program(_):
        weight = torch.ones(3, requires_grad=True)
        for batch in data(70):
            (batch @ weight).mean().backward()
            with torch.no_grad():
                weight -= 0.1 * weight.grad

    found = recorded(tmp_path / "run", program, "step")
    assert sum(losses(found)) == 70
    assert losses(found)[1:] == [1] * (len(found.steps) - 1)
    assert len(found.steps) > 2


def test_each_root_has_its_batch_and_what_another_root_computed_is_none(tmp_path):
    one, other = nn.Linear(3, 3), nn.Linear(3, 1)

    def program(_):
        optimizer = torch.optim.SGD([*one.parameters(), *other.parameters()], lr=0.1)
        for batch in data(2):
            other(one(batch)).mean().backward()
            (other(one(batch + 1)) + other(batch)).mean().backward()
            optimizer.step()

    found = recorded(tmp_path / "run", program, "step")
    sites = [row.site for row in found.of(step=2, slot="batch")]
    assert [(site.microbatch, site.occurrence) for site in sites] == [(0, 0), (1, 0), (1, 2)]
    assert len(set(sites)) == len(sites)


def test_an_optimizer_that_steps_twice_in_a_row_makes_two_steps(tmp_path):
    model = small()

    def program(_):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(torch.ones(2, 3)).mean().backward()
        optimizer.step()
        optimizer.step()

    found = recorded(tmp_path / "run", program, "step")
    assert found.per_step(slot="args.lr") == [1, 1]


def test_a_root_that_is_called_for_the_first_time_is_no_update(tmp_path):
    one, other = small(), nn.Linear(3, 1)

    def program(_):
        for number, batch in enumerate(data(6)):
            (one if number % 3 == 0 else other)(batch).mean().backward()
            if number % 3 == 2:
                with torch.no_grad():
                    for parameter in (*one.parameters(), *other.parameters()):
                        parameter -= 0.1 * parameter.grad

    assert losses(recorded(tmp_path / "run", program, "step")) == [3, 3]


def test_a_number_that_does_not_increase_is_said_and_changes_nothing(tmp_path):
    model = small()

    def program(recorder):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for number in (0, 5, 5, 6, 3):
            recorder.step(number)
            train(model, optimizer, steps=1)

    found = recorded(tmp_path / "run", program, "step")
    assert list(found.roots) == [0, 1, 5, 6]
    assert losses(found) == [1, 2, 2]
    assert found.gaps() == [
        f"step {wrong} after step {last}: numbers of steps must increase"
        for wrong, last in ((0, 0), (5, 5), (3, 6))
    ]


def test_the_order_in_which_an_optimizer_keeps_its_moments_means_nothing(tmp_path):
    """Megatron's checkpoint restores them in another one."""

    def run(name, reverse):
        model = small()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)

        def program(_):
            train(model, optimizer, steps=1)
            for parameter in model.parameters() if reverse else ():
                optimizer.state[parameter] = dict(reversed(optimizer.state[parameter].items()))
            train(model, optimizer, steps=1)

        rows = recorded(tmp_path / name, program, "phase").of(step=2, phase="optimizer")
        return [(row.site, row.digest) for row in rows]

    assert run("a", reverse=False) == run("b", reverse=True)
