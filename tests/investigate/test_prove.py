"""The judgement of a proof, on arms that were written by hand: it can say no, and it can doubt."""

import json
from pathlib import Path

import pytest

from bitstep.contract.manifest import Manifest, append_attempt
from bitstep.errors import LayoutError, RecipeError, RunError, UsageError
from bitstep.investigate.arms import Plan, Slots
from bitstep.investigate.prove import _judge, prove
from bitstep.records import WHOLE_RUN, Outcome, Record, Site
from bitstep.state.streams import STREAMS
from bitstep.trace import TraceWriter
from bitstep.train.recipe import load

STEPS = 8
ARMS = ("repeat", "processes-2", "resume", "resume-again")


def write_arm(folder: Path, name: str, change=None, end=True, conflict=False, processes=1):
    """An arm whose roots are all 7, or what `change(step, slot)` says."""
    run = folder / name
    run.mkdir(parents=True)
    append_attempt(run, Manifest({"layout.physical.processes": processes}), None)
    for attempt in range(2 if conflict else 1):
        with TraceWriter(run / f"attempt-{attempt:03d}", 0) as trace:
            for step in range(1, STEPS + 1):
                trace.write(list(rows(step, change if attempt == 0 else None)))
                trace.end_step(step, 7)
    if end:
        text = json.dumps({"status": "finished", "step": STEPS, "root": f"{7:016x}"})
        (run / f"attempt-{attempt:03d}" / "end.json").write_text(text)


def rows(step, change):
    for number, stream in enumerate(STREAMS):
        slot = f"root.{stream}"
        digest = change(step, slot) if change else 7
        seq = step * len(STREAMS) + number
        yield Record(seq, Site(step, WHOLE_RUN, "optimizer", slot), digest, "uint64")


def differs(*streams, after=4):
    wanted = {f"root.{stream}" for stream in streams}
    return lambda step, slot: 8 if step > after and slot in wanted else 7


def plan(folder):
    return Plan("nano", (), STEPS, (1, 2), threads=1, seed=7, folder=folder, fault=None)


def judged(folder, without=None, recipe=None, **changed):
    """The certificate of arms that all agree, but for those named in `changed` and `without`."""
    write_arm(folder, "reference")
    for name in ARMS:
        if name in changed and changed[name] is None:
            continue
        write_arm(folder, name, **changed.get(name.replace("-", "_"), {}))
    for stream in STREAMS:
        other = "moments" if stream == "parameters" else "parameters"
        change = (without or {}).get(stream, differs(stream, other))
        write_arm(folder, f"without-{stream}", change)
    return _judge(plan(folder), recipe or load("nano"), ())


def outcomes(certificate):
    return {finding.name: finding.outcome for finding in certificate.guarantees}


def test_arms_that_agree_and_controls_that_are_caught_are_a_proof(tmp_path):
    certificate = judged(tmp_path)
    assert certificate.verdict.outcome is Outcome.SAME
    assert outcomes(certificate) == {
        "repeatability": "proven",
        "exact resume": "proven",
        "layout freedom": "proven",
    }
    assert {control.outcome for control in certificate.controls} == {"caught"}
    assert certificate.rows_compared == STEPS * len(STREAMS)
    assert certificate.final_root == f"{7:016x}"
    assert json.loads(certificate.to_json())["verdict"] == "proven"


@pytest.mark.parametrize(
    ("arm", "guarantee"),
    [
        ("repeat", "repeatability"),
        ("processes_2", "layout freedom"),
        ("resume", "exact resume"),
        ("resume_again", "layout freedom"),
    ],
)
def test_one_row_that_differs_refutes_the_guarantee_of_its_arm(tmp_path, arm, guarantee):
    certificate = judged(tmp_path, **{arm: {"change": differs("moments")}})
    assert certificate.verdict.outcome is Outcome.DIFFERENT
    assert guarantee in certificate.verdict.reasons
    (finding,) = [f for f in certificate.guarantees if f.name == guarantee]
    assert "step 5, optimizer, root.moments" in finding.detail


def test_a_resume_is_compared_with_the_arm_on_the_same_number_of_processes(tmp_path):
    folded = {"change": differs("moments", after=0)}
    certificate = judged(tmp_path, processes_2=folded, resume=folded, resume_again=folded)
    assert outcomes(certificate) == {
        "repeatability": "proven",
        "exact resume": "proven",
        "layout freedom": "refuted",
    }


def test_attempts_of_one_arm_that_disagree_refute_exact_resume(tmp_path):
    resume = {"change": differs("data"), "conflict": True}
    certificate = judged(tmp_path, resume=resume)
    assert outcomes(certificate)["exact resume"] == "refuted"


def test_an_arm_without_its_end_marker_is_unverified_and_not_a_pass(tmp_path):
    certificate = judged(tmp_path, repeat={"end": False})
    assert certificate.verdict.outcome is Outcome.UNVERIFIED
    assert outcomes(certificate)["repeatability"] == "unverified"


def test_an_arm_whose_second_process_left_no_trace_is_unverified(tmp_path):
    certificate = judged(tmp_path, processes_2={"processes": 2})
    assert outcomes(certificate)["layout freedom"] == "unverified"
    (finding,) = [f for f in certificate.guarantees if f.name == "layout freedom"]
    assert "no trace of process 1" in finding.detail


def test_a_refuted_guarantee_weighs_more_than_an_unverified_one(tmp_path):
    certificate = judged(tmp_path, repeat={"end": False}, resume={"change": differs("parameters")})
    assert certificate.verdict.outcome is Outcome.DIFFERENT


def test_a_control_that_changes_only_its_own_stream_is_missed(tmp_path):
    certificate = judged(tmp_path, without={"moments": differs("moments")})
    assert certificate.verdict.outcome is Outcome.UNVERIFIED
    assert certificate.verdict.reasons == ("without moments",)


def test_a_control_that_changes_nothing_is_inert_only_with_a_reviewed_reason(tmp_path):
    silent = load("nano", ["model.dropout=0.0"])
    certificate = judged(tmp_path / "a", without={"random": differs("random")}, recipe=silent)
    (control,) = [c for c in certificate.controls if c.name == "without random"]
    assert control.outcome == "inert"
    assert "model.dropout is 0" in control.detail
    assert certificate.verdict.outcome is Outcome.SAME
    loud = judged(tmp_path / "b", without={"random": differs("random")})
    assert loud.verdict.outcome is Outcome.UNVERIFIED


def test_bad_input_is_refused_before_anything_runs(tmp_path):
    folder = tmp_path / "proof"
    with pytest.raises(RecipeError, match="no recipe 'giga'"):
        prove("giga", folder=folder)
    with pytest.raises(LayoutError, match="3 processes"):
        prove("nano", processes=(1, 3), folder=folder)
    with pytest.raises(UsageError, match="at least 8 steps"):
        prove("nano", steps=4, changes=["schedule.warmup=1"], folder=folder)
    with pytest.raises(UsageError, match="no fault is named"):
        prove("nano", fault="gremlin", folder=folder)
    assert not folder.exists()
    (tmp_path / "file").write_text("mine")
    with pytest.raises(RunError, match="is not empty"):
        prove("nano", folder=tmp_path)


def test_the_moment_of_the_kill_is_seeded_and_leaves_room_on_both_sides(tmp_path):
    from dataclasses import replace

    moments = {replace(plan(tmp_path), seed=seed).kill_at() for seed in range(50)}
    assert plan(tmp_path).kill_at() == plan(tmp_path).kill_at()
    assert len(moments) == 50
    assert all(2 <= step <= STEPS - 2 and 0 <= part < 1 for step, part in moments)


def test_an_arm_waits_for_its_cores_and_never_for_more_than_there_are():
    slots = Slots(2)
    with slots.taken(1), slots.taken(1):
        assert slots._free == 0
    with slots.taken(4):
        assert slots._free == 0
    assert slots._free == 2
