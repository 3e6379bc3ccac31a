"""Each kind of first difference, from a simulated training with one fault, is named exactly."""

from __future__ import annotations

from pathlib import Path

import pytest
from simulated import NAMES, Fault, Life, State, first_state, record

from bitstep.diff import Cause, Difference, Kind, compare_runs
from bitstep.records import Flag, Outcome
from bitstep.trace import read_trace


@pytest.fixture
def runs(tmp_path: Path) -> tuple[Path, Path]:
    return tmp_path / "a", tmp_path / "b"


def at(step: int, moment: str, what: object, rank: int = 0) -> Fault:
    """A fault at one moment of one step of one rank."""

    def fault(life: Life, here: int, now: int, name: str) -> None:
        if (here, now, name) == (rank, step, moment):
            what(life)  # type: ignore[operator]

    return fault


def compared(runs: tuple[Path, Path]) -> Difference:
    return compare_runs(*runs)


def one_cause(runs: tuple[Path, Path]) -> Cause:
    found = compared(runs)
    assert found.outcome is Outcome.DIFFERENT
    assert len(found.causes) == 1
    return found.causes[0]


def make_noise(life: Life) -> None:
    life.noise = 99


@pytest.mark.parametrize("level", ["step", "phase", "module", "op"])
def test_equal_runs_are_the_same_at_every_level(runs: tuple[Path, Path], level: str) -> None:
    for run in runs:
        record(run, level=level, world=2)
    found = compared(runs)
    assert (found.outcome, found.causes, found.reasons) == (Outcome.SAME, (), ())
    assert found.covered.steps == (0, 6)
    assert found.covered.ranks == (0, 1)


def test_a_python_generator_that_nobody_seeded_is_no_difference(runs: tuple[Path, Path]) -> None:
    record(runs[0], python=1)
    record(runs[1], python=2)
    assert compared(runs).outcome is Outcome.SAME


def test_an_op_whose_inputs_match_and_whose_output_does_not(runs: tuple[Path, Path]) -> None:
    record(runs[0])
    record(runs[1], fault=at(4, "loss", make_noise))
    cause = one_cause(runs)
    assert cause.kind is Kind.ORIGIN
    assert (cause.where.step, cause.where.phase, cause.where.op) == (4, "forward", "aten.mse_loss")
    assert cause.where.slot == "out.0"
    assert cause.title == ("aten.mse_loss #0, phase forward gives other bits for equal inputs")
    assert cause.sure == "certain: every input was hashed there"


def test_carried_inputs_make_an_origin_likely_and_not_certain(runs: tuple[Path, Path]) -> None:
    record(runs[0])
    record(runs[1], fault=at(4, "primary linear", make_noise))
    cause = one_cause(runs)
    assert (cause.kind, cause.where.op, cause.where.module) == (Kind.ORIGIN, "aten.mm", "Net.0")
    assert cause.sure.startswith("likely: 2 of its inputs were not hashed again")


@pytest.mark.parametrize(
    ("level", "slot"), [("step", "metric.loss"), ("phase", "metric.loss"), ("op", "out.0")]
)
def test_a_lower_level_names_the_part_of_the_step(
    runs: tuple[Path, Path], level: str, slot: str
) -> None:
    record(runs[0], level=level)
    record(runs[1], level=level, fault=at(4, "loss", make_noise))
    found = compared(runs)
    cause = found.causes[0]
    assert (cause.kind, cause.where.step, cause.where.slot) == (Kind.ORIGIN, 4, slot)
    deeper = any("--level op --steps 4:5" in hint for hint in found.hints)
    assert deeper == (level != "op")


def test_runs_of_different_levels_are_compared_down_to_what_both_have(
    runs: tuple[Path, Path],
) -> None:
    record(runs[0], level="op")
    record(runs[1], level="phase", fault=at(4, "loss", make_noise))
    found = compared(runs)
    assert (found.causes[0].kind, found.causes[0].where.slot) == (Kind.ORIGIN, "metric.loss")
    assert "the runs were recorded at different levels: compared down to level phase" in found.notes


def test_equal_runs_of_different_levels_are_the_same(runs: tuple[Path, Path]) -> None:
    record(runs[0], level="op")
    record(runs[1], level="step")
    assert compared(runs).outcome is Outcome.SAME


def test_gradients_of_modules_are_left_out_at_another_level(runs: tuple[Path, Path]) -> None:
    def add(life: Life) -> None:
        if life.level == "module":
            life.row("backward", "grad_out.0", 5, "Net.0", microbatch=0)

    for run, level in zip(runs, ("op", "module"), strict=True):
        record(run, level=level, fault=at(2, "backward", add))
    assert compared(runs).outcome is Outcome.SAME


def test_another_seed_is_another_initial_state(runs: tuple[Path, Path]) -> None:
    record(runs[0], states=[first_state(1)])
    record(runs[1], states=[first_state(2)])
    cause = one_cause(runs)
    assert (cause.kind, cause.where.step, cause.where.module) == (Kind.INITIAL, 0, NAMES[0])
    assert cause.title == (
        "the state before the first step is another one: Net.0.weight, Net.1.weight"
    )


def test_other_data_are_data(runs: tuple[Path, Path]) -> None:
    def skip(life: Life) -> None:
        states[0].position += 1

    record(runs[0])
    states = [first_state()]
    record(runs[1], states=states, fault=at(3, "data", skip))
    cause = one_cause(runs)
    assert (cause.kind, cause.where.step, cause.where.slot) == (Kind.DATA, 3, "batch")
    assert cause.title == "argument 0 of the batch of step 3 is another one"


def draw_once(states: list[State]) -> object:
    def draw(life: Life) -> None:
        life.call("eval", "aten.random_", draw=states[0], line="evaluate.py:12", out="mutated.0")

    return draw


def test_a_draw_that_only_one_run_made_is_named_with_its_line(runs: tuple[Path, Path]) -> None:
    record(runs[0])
    states = [first_state()]
    record(runs[1], states=states, fault=at(3, "data", draw_once(states)))
    cause = one_cause(runs)
    assert (cause.kind, cause.where.step, cause.where.op) == (Kind.RANDOM, 3, "aten.random_")
    assert cause.because == (
        "B drew once more: aten.random_ at evaluate.py:12 (step 3, phase eval).",
        "So the batch of step 3 is another one.",
    )


def test_a_draw_at_the_end_of_the_step_before_is_found(runs: tuple[Path, Path]) -> None:
    states = [first_state()]
    record(runs[0], states=states, fault=at(2, "end", draw_once(states)))
    record(runs[1])
    cause = one_cause(runs)
    assert (cause.kind, cause.where.step) == (Kind.RANDOM, 3)
    assert cause.because[0] == (
        "A drew once more: aten.random_ at evaluate.py:12 (step 2, phase eval)."
    )


def test_data_drawn_from_a_shifted_generator_are_data_where_no_op_was_recorded(
    runs: tuple[Path, Path],
) -> None:
    record(runs[0], level="phase")
    states = [first_state()]
    record(runs[1], level="phase", states=states, fault=at(3, "data", draw_once(states)))
    cause = one_cause(runs)
    assert cause.kind is Kind.DATA
    assert cause.title == (
        "the batch of step 3 is another one, and so is the state of the torch generator"
    )


def test_another_learning_rate_is_configuration(runs: tuple[Path, Path]) -> None:
    def faster(life: Life) -> None:
        states[0].lr = 0.2

    record(runs[0])
    states = [first_state()]
    record(runs[1], states=states, fault=at(5, "backward", faster))
    cause = one_cause(runs)
    assert (cause.kind, cause.where.step, cause.where.slot) == (Kind.CONFIGURATION, 5, "args.lr")
    assert cause.title == "lr of AdamW group0 is 0.1 in A, 0.2 in B"
    assert (str(cause.a), str(cause.b)) == ("0.1", "0.2")


def test_a_stray_write_to_a_parameter_is_an_unseen_write(runs: tuple[Path, Path]) -> None:
    def flip(life: Life) -> None:
        states[0].params[NAMES[1]] ^= 1

    record(runs[0])
    states = [first_state()]
    record(runs[1], states=states, fault=at(4, "end", flip))
    cause = one_cause(runs)
    assert (cause.kind, cause.where.step, cause.where.module) == (Kind.UNSEEN, 4, NAMES[1])
    assert cause.title == "Net.1.weight (param) was changed by something that was not recorded"
    assert cause.because[0] == (
        "It was equal after aten.addcdiv_ #1, phase optimizer, and differs at param Net.1.weight, "
        "phase optimizer."
    )


def test_a_stray_write_between_steps_is_bounded_by_the_end_of_the_step_before(
    runs: tuple[Path, Path],
) -> None:
    def flip(life: Life) -> None:
        states[0].params[NAMES[1]] ^= 1

    record(runs[0], level="phase")
    states = [first_state()]
    record(runs[1], level="phase", states=states, fault=at(4, "data", flip))
    cause = one_cause(runs)
    assert (cause.kind, cause.where.step, cause.where.phase) == (Kind.UNSEEN, 4, "optimizer")
    assert "at the end of step 3" in cause.because[0]


def test_a_recorded_write_that_one_run_lacks_is_named(runs: tuple[Path, Path]) -> None:
    def write(life: Life) -> None:
        weight = states[0].params[NAMES[1]]
        states[0].params[NAMES[1]] = life.call(
            "optimizer", "aten.bitwise_xor_", [("w", weight)], out="mutated.0"
        )

    record(runs[0])
    states = [first_state()]
    record(runs[1], states=states, fault=at(4, "end", write))
    cause = one_cause(runs)
    assert (cause.kind, cause.where.op) == (Kind.MISSING, "aten.bitwise_xor_")
    assert cause.title == "B ran aten.bitwise_xor_ #0, phase optimizer, and A did not"


def test_an_op_that_changes_nothing_is_reported_and_reaches_nothing(
    runs: tuple[Path, Path],
) -> None:
    record(runs[0])
    record(runs[1], fault=at(4, "loss", lambda life: life.call("forward", "aten.norm")))
    found = compared(runs)
    cause = found.causes[0]
    assert (found.outcome, cause.kind) == (Outcome.DIFFERENT, Kind.MISSING)
    assert cause.title == "only B has aten.norm #0, phase forward, slot out.0"
    assert found.notes[0] == ("the difference never reaches the state or a metric, up to the end")
    assert (found.metrics, found.state) == ((), None)


def test_an_op_that_changes_nothing_does_not_hide_what_comes_later(
    runs: tuple[Path, Path],
) -> None:
    def fault(life: Life, rank: int, step: int, moment: str) -> None:
        if (step, moment) == (2, "loss"):
            life.call("forward", "aten.mse_loss", [("log", 3)])
        if (step, moment) == (5, "loss"):
            life.noise = 99

    record(runs[0])
    record(runs[1], fault=fault)
    cause = one_cause(runs)
    assert (cause.kind, cause.where.step, cause.where.op) == (Kind.ORIGIN, 5, "aten.mse_loss")


def test_uninitialised_memory_is_named(runs: tuple[Path, Path]) -> None:
    for run, garbage in zip(runs, (1, 2), strict=True):

        def read(life: Life, garbage: int = garbage) -> None:
            given = [("empty", garbage)]
            life.call("forward", "aten.add", given, flags=Flag.UNINITIALISED)

        record(run, fault=at(3, "loss", read))
    cause = one_cause(runs)
    assert (cause.kind, cause.where.op, cause.where.slot) == (
        Kind.UNINITIALISED, "aten.add", "in.0",
    )  # fmt: skip


def test_the_same_values_added_in_another_order(runs: tuple[Path, Path]) -> None:
    for run, order in zip(runs, ((1, 2, 3, 4), (1, 3, 2, 4)), strict=True):

        def add(life: Life, order: tuple[int, ...] = order) -> None:
            total = 0
            for value in order:
                given = [("total", total), ("", value)]
                total = life.call("backward", "aten.add_", given, out="mutated.0")

        record(run, fault=at(3, "backward", add))
    cause = one_cause(runs)
    assert (cause.kind, cause.where.op, cause.where.occurrence) == (Kind.ORDER, "aten.add_", 1)
    assert cause.title == "the same 4 values are added in another order by aten.add_"


def test_results_of_other_calls_are_no_unseen_write(runs: tuple[Path, Path]) -> None:
    for run, order in zip(runs, ((1, 2, 3, 4), (2, 1, 3, 4)), strict=True):

        def add(life: Life, order: tuple[int, ...] = order) -> None:
            for at, value in enumerate(order):
                norm = life.call("forward", "aten.norm", [("", value)])
                if not at:
                    life.call("forward", "aten.mul", [("aten.norm", norm)])

        record(run, fault=at(3, "loss", add))
    cause = one_cause(runs)
    assert (cause.kind, cause.where.op) == (Kind.ORDER, "aten.mul")
    assert cause.title == "aten.mul #0, phase forward reads the results of other calls"


def test_another_value_is_no_other_order(runs: tuple[Path, Path]) -> None:
    for run, order in zip(runs, ((1, 2, 3, 4), (1, 3, 6, 4)), strict=True):

        def add(life: Life, order: tuple[int, ...] = order) -> None:
            for value in order:
                given = [("total", 0), ("", value)]
                life.call("forward", "aten.add_", given, out="mutated.0", result=0)

        record(run, fault=at(3, "loss", add))
    assert one_cause(runs).kind is Kind.DATA


def test_the_same_calls_in_another_order_are_the_same(runs: tuple[Path, Path]) -> None:
    for run, order in zip(runs, ((1, 2, 3), (3, 1, 2)), strict=True):

        def work(life: Life, order: tuple[int, ...] = order) -> None:
            for value in order:
                life.call("optimizer", "aten.mul_", [("", value)], out="mutated.0")

        record(run, fault=at(3, "optimizer", work))
    found = compared(runs)
    assert found.outcome is Outcome.SAME
    assert "1 scopes ran the same calls in another order; paired by content" in found.notes


@pytest.mark.parametrize("goes_on", [3, 5])
@pytest.mark.parametrize("close", [True, False])
def test_a_step_that_a_run_died_in_has_no_end_to_compare(
    runs: tuple[Path, Path], goes_on: int, close: bool
) -> None:
    """Nor other settings: they were not reached."""
    record(runs[0], steps=goes_on)
    record(runs[1], steps=2, dies=True, close=close)
    found = compared(runs)
    assert (found.outcome, found.causes) == (Outcome.UNVERIFIED, ())
    ended = "B ended within step 3, before its optimizer, on rank 0"
    assert found.reasons[0 if close else 1 :] == (
        (ended,) if goes_on == 3 else (ended, "only A has steps 4 to 5")
    )
    assert found.covered.steps == (0, 3)


def test_what_differs_in_the_step_that_a_run_died_in_is_named(runs: tuple[Path, Path]) -> None:
    record(runs[0], steps=3)
    record(runs[1], steps=2, dies=True, fault=at(3, "forward", make_noise))
    cause = one_cause(runs)
    assert (cause.kind, cause.where.step, cause.where.op) == (Kind.ORIGIN, 3, "aten.mm")
    assert "B ended within step 3, before its optimizer, on rank 0" in compared(runs).notes


def test_one_of_several_calls_with_the_same_bits_that_is_damaged_has_not_moved(
    runs: tuple[Path, Path],
) -> None:
    """Each microbatch makes the same mask anew."""
    for run, results in zip(runs, ((5, 5, 5), (6, 5, 5)), strict=True):

        def masks(life: Life, results: tuple[int, ...] = results) -> None:
            for result in results:
                life.call("forward", "aten.ones", result=result)
                life.call("forward", "aten.triu", [("aten.ones", result)])

        record(run, fault=at(3, "loss", masks))
    cause = one_cause(runs)
    assert (cause.kind, cause.where.op) == (Kind.ORIGIN, "aten.ones")
    assert (cause.where.occurrence, cause.where.slot) == (0, "out.0")


def test_recomputation_that_draws_anew(runs: tuple[Path, Path]) -> None:
    record(runs[0])
    record(runs[1], recompute="new")
    cause = one_cause(runs)
    assert (cause.kind, cause.where.step, cause.where.pass_) == (Kind.RECOMPUTE, 1, "recompute")
    assert (cause.where.op, cause.where.slot) == ("aten.bernoulli_", "rng")
    assert cause.title == (
        "recomputation in B draws new random numbers: aten.bernoulli_ #0 in Net.drop"
    )


def test_recomputation_that_keeps_its_state_reaches_nothing(runs: tuple[Path, Path]) -> None:
    record(runs[0])
    record(runs[1], recompute="kept")
    found = compared(runs)
    assert found.causes[0].kind is Kind.MISSING
    assert (found.metrics, found.state) == ((), None)


def test_other_kernels_for_the_same_part(runs: tuple[Path, Path]) -> None:
    record(runs[0])
    record(runs[1], fused=True)
    cause = one_cause(runs)
    assert (cause.kind, cause.where.step, cause.where.slot) == (Kind.ORIGIN, 1, "param")
    assert cause.title == (
        "in the optimizer step the runs used other operations: A aten.addcdiv_ (2), aten.lerp_ (2),"
        " B aten._fused_adamw_ (2)"
    )


def test_a_rank_that_only_received_is_told_from_whom(runs: tuple[Path, Path]) -> None:
    record(runs[0], world=3)
    record(runs[1], world=3, fault=at(4, "loss", make_noise, rank=1))
    found = compared(runs)
    assert [(cause.kind, cause.ranks, cause.where.step) for cause in found.causes] == [
        (Kind.ORIGIN, (1,), 4)
    ]
    assert [(one.rank, one.step, one.op, one.source) for one in found.receivers] == [
        (0, 4, "c10d.allreduce_", (1,)),
        (2, 4, "c10d.allreduce_", (1,)),
    ]


def test_a_collective_that_gives_other_bits_for_equal_inputs(runs: tuple[Path, Path]) -> None:
    record(runs[0], world=2)
    record(runs[1], world=2, fault=at(4, f"reduce {NAMES[0]}", make_noise, rank=1))
    cause = one_cause(runs)
    assert (cause.kind, cause.ranks, cause.where.op) == (Kind.COLLECTIVE, (1,), "c10d.allreduce_")
    assert cause.because[0] == "All 2 members gave equal inputs."


def test_a_collective_with_a_member_that_was_not_recorded_cannot_be_told(
    runs: tuple[Path, Path],
) -> None:
    record(runs[0], world=2)
    record(runs[1], world=2, fault=at(4, "loss", make_noise, rank=1))
    for run in runs:
        for path in (run / "attempt-000").glob("rank-00001.*"):
            path.unlink()
    found = compared(runs)
    assert found.causes[0].kind is Kind.COLLECTIVE
    assert found.causes[0].sure.startswith("could not tell")
    assert "A ran on 2 ranks, rank 1 recorded nothing" in found.notes


def test_two_ranks_that_part_by_themselves_are_both_named(runs: tuple[Path, Path]) -> None:
    def fault(life: Life, rank: int, step: int, moment: str) -> None:
        if (rank, step, moment) in ((0, 4, "loss"), (2, 4, "primary linear")):
            life.noise = 99

    record(runs[0], world=3)
    record(runs[1], world=3, fault=fault)
    found = compared(runs)
    assert [(c.where.op, c.ranks) for c in found.causes] == [
        ("aten.mse_loss", (0,)), ("aten.mm", (2,)),
    ]  # fmt: skip
    assert [one.rank for one in found.receivers] == [1]


def test_metrics_and_state_say_since_when(runs: tuple[Path, Path]) -> None:
    record(runs[0])
    states = [first_state()]

    def faster(life: Life) -> None:
        states[0].lr = 0.2

    record(runs[1], states=states, fault=at(5, "backward", faster))
    found = compared(runs)
    assert [(one.name, one.step) for one in found.metrics] == [("loss", 6)]
    assert found.state is not None
    assert found.state.step == 5


def test_records_before_the_difference_are_counted(runs: tuple[Path, Path]) -> None:
    record(runs[0], steps=1)
    record(runs[1], steps=1, fault=at(1, "loss", make_noise))
    rows = list(read_trace(runs[0] / "attempt-000").records())
    cause = one_cause(runs)
    assert cause.a is not None
    compared_before = [
        row for row in rows
        if row.seq < cause.a.seq and not row.site.slot.startswith(("level", "world", "at."))
    ]  # fmt: skip
    assert cause.equal_before == len(compared_before)


def test_records_that_one_rank_has_more_do_not_hide_where_another_parts(
    runs: tuple[Path, Path],
) -> None:
    def fault(life: Life, rank: int, step: int, moment: str) -> None:
        if (rank, moment) == (0, "loss"):
            life.call("forward", "aten.norm")
        if (rank, step, moment) == (1, 5, "loss"):
            life.noise = 99

    record(runs[0], world=2)
    record(runs[1], world=2, fault=fault)
    found = compared(runs)
    assert [(c.kind, c.ranks, c.where.step) for c in found.causes] == [(Kind.ORIGIN, (1,), 5)]
    assert [one.rank for one in found.receivers] == [0]


def test_a_value_that_is_no_data_is_said_to_be_none(runs: tuple[Path, Path]) -> None:
    for run, scale in zip(runs, (1024, 2048), strict=True):

        def multiply(life: Life, scale: int = scale) -> None:
            given = [("loss", 3), ("scale", scale)]
            life.call("forward", "aten.mul.Tensor", given, microbatch=0)

        record(run, fault=at(3, "loss", multiply))
    cause = one_cause(runs)
    assert (cause.kind, cause.where.op, cause.where.slot) == (
        Kind.DATA,
        "aten.mul.Tensor",
        "in.1",
    )
    assert cause.because[1] == (
        "The batch is equal: it is a constant, a scale or a buffer of the program."
    )


def test_a_model_with_another_tensor_is_another_initial_state(runs: tuple[Path, Path]) -> None:
    record(runs[0])
    states = [first_state()]
    states[0].params["Net.2.weight"] = 7
    record(runs[1], states=states)
    cause = one_cause(runs)
    assert cause.kind is Kind.INITIAL
    assert cause.title == (
        "the state before the first step is another one: Net.2.weight (only in B)"
    )


def test_what_passes_is_the_cause_where_the_next_step_differs(runs: tuple[Path, Path]) -> None:
    """Sums that are made after a step and used in the next: no state shows them in between."""
    for run, order in zip(runs, ((1, 2, 3, 4), (1, 3, 2, 4)), strict=True):

        def add(life: Life, _: int, step: int, name: str, order: tuple[int, ...] = order) -> None:
            if (step, name) == (3, "end"):
                total = 0
                for value in order:
                    given = [("total", total), ("", value)]
                    total = life.call("optimizer", "aten.add_", given, out="mutated.0")
            if (step, name) == (4, "loss"):
                life.noise = order[1]

        record(run, fault=add)
    cause = one_cause(runs)
    assert (cause.kind, cause.where.step) == (Kind.ORDER, 3)


def test_what_passes_is_no_cause_of_what_comes_much_later(runs: tuple[Path, Path]) -> None:
    for run, value in zip(runs, (1, 2), strict=True):

        def fault(life: Life, _: int, step: int, name: str, value: int = value) -> None:
            if (step, name) == (2, "end"):
                life.call("optimizer", "aten.mul", [("x", 0), ("", value)])
            if (step, name) == (5, "loss"):
                life.noise = value

        record(run, fault=fault)
    found = compared(runs)
    assert (found.causes[0].kind, found.causes[0].where.step) == (Kind.ORIGIN, 5)
    assert found.notes[-1] == (
        "rank 0, step 2: what operations were given differs there already, and does not reach the "
        "state"
    )


def test_settings_that_could_not_be_compared_are_a_gap(runs: tuple[Path, Path]) -> None:
    for run in runs:
        record(run, steps=2)
    (runs[1] / "manifest.json").write_text('{"format": 1, "attempts": [')
    assert compare_runs(*runs).outcome is Outcome.SAME
    found = compare_runs(*runs, strict=True)
    assert found.outcome is Outcome.UNVERIFIED
    said = "settings were not compared: the manifest of"
    assert found.reasons == (
        f"{said} A: it is missing (--strict)",
        f"{said} B: it cannot be trusted (--strict)",
    )
