"""The judgement of a proof, on arms that were written by hand: it can say no, and it can doubt."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from bitstep.checkpoint import save
from bitstep.contract.manifest import Manifest, append_attempt
from bitstep.errors import RunError
from bitstep.investigate.arms import Plan
from bitstep.investigate.judge import INERT, judge
from bitstep.records import WHOLE_RUN, Box, Outcome, Record, Site
from bitstep.state.processes import Processes
from bitstep.state.streams import STREAMS, Piece, TrainingState, start_values
from bitstep.trace import TraceWriter
from bitstep.train.recipe import load

STEPS, SAVED, KILLED = 8, 4, 5
CONTROLS = tuple(f"without-{stream}" for stream in STREAMS)
RESUMED = ("resume", "resume-again", *CONTROLS)
SAVING = ("reference", "processes-2", "whole-sums", "resume")
PARENT = {"attempt": 0, "step": SAVED, "root": f"{7:016x}"}


def same(step, slot):
    return 7


def write_attempt(run, number, steps, change, *, parent=None, processes=1, end="finished"):
    append_attempt(run, Manifest({"layout.physical.processes": processes}), parent)
    folder = run / f"attempt-{number:03d}"
    with TraceWriter(folder, 0) as trace:
        for step in steps:
            trace.write(list(rows(step, change)))
            trace.end_step(step, 7)
    if end:
        text = json.dumps({"status": end, "step": steps[-1], "root": f"{7:016x}"})
        (folder / "end.json").write_text(text)
    else:
        index = folder / "rank-00000.000.index"
        index.write_bytes(index.read_bytes()[:-1])  # what a kill leaves has no end marker


def write_arm(
    folder: Path,
    name: str,
    change=same,
    *,
    before=same,
    first_end=None,
    parent=PARENT,
    end="finished",
    processes=1,
    final=1.0,
):
    """An arm whose roots are all 7, or what `change(step, slot)` says, and `before` until a kill.

    `final` is what its final checkpoint holds; None for no checkpoint.
    """
    run = folder / name
    run.mkdir(parents=True)
    steps = range(1, STEPS + 1)
    if name in RESUMED:
        write_attempt(run, 0, range(1, KILLED + 1), before, end=first_end)
        write_attempt(run, 1, range(SAVED + 1, STEPS + 1), change, parent=parent, end=end)
    else:
        write_attempt(run, 0, steps, change, end=end, processes=processes)
    if name in SAVING and final is not None:
        save_final(run, final)


def save_final(run, value):
    state = TrainingState(
        pieces=[Piece("parameters", "w", torch.tensor([value]), Box((1,), (0,), (1,)))],
        values=start_values(7),
    )
    save(run / "checkpoints", STEPS, state, Processes(0, 1))


def rows(step, change):
    for number, stream in enumerate(STREAMS):
        slot = f"root.{stream}"
        seq = step * len(STREAMS) + number
        yield Record(seq, Site(step, WHOLE_RUN, "optimizer", slot), change(step, slot), "uint64")


def differs(*streams, after=KILLED):
    wanted = {f"root.{stream}" for stream in streams}
    return lambda step, slot: 8 if step > after and slot in wanted else 7


def plan(folder, processes=(1, 2)):
    whole = processes[1] if len(processes) > 1 else None
    return Plan(
        "nano", (), STEPS, processes, threads=1, seed=7, folder=folder, fault=None, whole_sums=whole
    )


def judged(folder, changed=None, recipe=None, processes=(1, 2)):
    """The certificate of arms that agree and controls that are noticed, but for the changed ones.

    `changed` is by name of an arm: None for one that left nothing, or words for write_arm.
    """
    arms = {name: {} for name in ("reference", "repeat", "resume", "resume-again")}
    arms |= {f"processes-{w}": {} for w in processes[1:]}
    arms |= {"whole-sums": {}} if processes[1:] else {}
    for stream in STREAMS:
        other = "moments" if stream == "parameters" else "parameters"
        arms[f"without-{stream}"] = {"change": differs(stream, other)}
    unknown = (changed or {}).keys() - arms.keys()
    assert not unknown, unknown
    for name, words in (arms | (changed or {})).items():
        if words is not None:
            write_arm(folder, name, **words)
    return judge(plan(folder, processes), recipe or load("nano"), ())


def outcomes(certificate):
    return {finding.name: finding.outcome for finding in certificate.guarantees}


def detail(certificate, name):
    found = (*certificate.guarantees, *certificate.controls)
    return next(finding.detail for finding in found if finding.name == name)


def test_arms_that_agree_and_controls_that_are_caught_are_a_proof(tmp_path):
    certificate = judged(tmp_path)
    assert certificate.verdict.outcome is Outcome.SAME
    assert certificate.verdict.title == "proven"
    assert set(outcomes(certificate).values()) == {"proven"}
    assert list(outcomes(certificate)) == ["repeatability", "exact resume", "layout freedom"]
    assert {control.outcome for control in certificate.controls} == {"caught"}
    assert certificate.rows_compared == STEPS * len(STREAMS)
    assert certificate.final_root == f"{7:016x}"
    assert json.loads(certificate.to_json())["verdict"] == "proven"


@pytest.mark.parametrize(
    ("arm", "guarantee"),
    [
        ("repeat", "repeatability"),
        ("processes-2", "layout freedom"),
        ("whole-sums", "layout freedom"),
        ("resume", "exact resume"),
        ("resume-again", "layout freedom"),
    ],
)
def test_one_row_that_differs_refutes_the_guarantee_of_its_arm(tmp_path, arm, guarantee):
    changed = {arm: {"change": differs("moments")}}
    if arm == "processes-2":  # the resume is compared with it
        changed["resume"] = {"change": differs("moments")}
    certificate = judged(tmp_path, changed)
    assert certificate.verdict.outcome is Outcome.DIFFERENT
    assert certificate.verdict.reasons == (guarantee,)
    assert f"{arm}: step 6, optimizer, root.moments" in detail(certificate, guarantee)


def test_a_resume_is_compared_with_the_arm_on_the_same_number_of_processes(tmp_path):
    folded = differs("moments", after=0)
    both = {"change": folded, "before": folded}
    certificate = judged(
        tmp_path, {"processes-2": {"change": folded}, "resume": both, "resume-again": both}
    )
    assert outcomes(certificate) == {
        "repeatability": "proven",
        "exact resume": "proven",
        "layout freedom": "refuted",
    }


def test_attempts_of_one_arm_that_disagree_refute_exact_resume(tmp_path):
    certificate = judged(tmp_path, {"resume": {"change": differs("data", after=SAVED)}})
    assert outcomes(certificate)["exact resume"] == "refuted"
    assert "step 5" in detail(certificate, "exact resume")


def test_what_was_recorded_before_the_kill_counts_too(tmp_path):
    only_step_2 = {"before": lambda step, slot: 8 if (step, slot) == (2, "root.data") else 7}
    certificate = judged(tmp_path, {"resume": only_step_2})
    assert outcomes(certificate)["exact resume"] == "refuted"
    assert "step 2" in detail(certificate, "exact resume")


def test_an_arm_without_its_end_marker_is_unverified_and_not_a_pass(tmp_path):
    certificate = judged(tmp_path, {"repeat": {"end": None}})
    assert certificate.verdict.outcome is Outcome.UNVERIFIED
    assert outcomes(certificate)["repeatability"] == "unverified"


@pytest.mark.parametrize("arm", ["repeat", "processes-2", "resume", "resume-again"])
def test_an_arm_that_left_nothing_is_unverified(tmp_path, arm):
    certificate = judged(tmp_path, {arm: None})
    assert certificate.verdict.outcome is Outcome.UNVERIFIED
    assert certificate.verdict.reasons


def test_an_arm_whose_second_process_left_no_trace_is_unverified(tmp_path):
    certificate = judged(tmp_path, {"processes-2": {"processes": 2}})
    assert outcomes(certificate)["layout freedom"] == "unverified"
    assert "no trace of process 1" in detail(certificate, "layout freedom")


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ({"first_end": "finished"}, "its first attempt was not killed: it finished"),
        ({"first_end": "stopped"}, "its first attempt was not killed: it stopped"),
        ({"parent": None}, "it did not go on from a checkpoint"),
    ],
)
@pytest.mark.parametrize(
    ("arm", "judged_by"), [("resume", "exact resume"), ("resume-again", "layout freedom")]
)
def test_an_arm_that_was_not_killed_or_did_not_go_on_proves_no_resume(
    tmp_path, words, reason, arm, judged_by
):
    certificate = judged(tmp_path, {arm: words})
    assert certificate.verdict.outcome is Outcome.UNVERIFIED
    assert certificate.verdict.reasons == (judged_by,)
    assert detail(certificate, judged_by) == f"{arm}: {reason}"


def test_a_control_that_did_not_go_on_from_a_checkpoint_is_missed(tmp_path):
    words = {"change": differs("data", "parameters"), "parent": None}
    certificate = judged(tmp_path, {"without-data": words})
    assert certificate.verdict.reasons == ("without data",)
    assert "did not go on from a checkpoint" in detail(certificate, "without data")


@pytest.mark.parametrize(
    ("arm", "guarantee"), [("resume", "exact resume"), ("processes-2", "layout freedom")]
)
def test_a_final_state_with_another_byte_is_refuted(tmp_path, arm, guarantee):
    changed = {arm: {"final": 2.0}}
    if arm == "processes-2":
        changed["resume"] = {"final": 2.0}
    certificate = judged(tmp_path, changed)
    assert certificate.verdict.outcome is Outcome.DIFFERENT
    assert certificate.verdict.reasons == (guarantee,)
    assert detail(certificate, guarantee) == f"{arm}: final parameters/w differs, and 0 more"


@pytest.mark.parametrize(
    ("arm", "guarantees"),
    [
        ("resume", ("exact resume",)),
        ("processes-2", ("exact resume", "layout freedom")),
        ("reference", ("layout freedom",)),
    ],
)
def test_a_final_state_that_is_missing_is_unverified(tmp_path, arm, guarantees):
    certificate = judged(tmp_path, {arm: {"final": None}})
    assert certificate.verdict.outcome is Outcome.UNVERIFIED
    assert certificate.verdict.reasons == guarantees
    for guarantee in guarantees:
        assert f"{arm}: its final checkpoint is missing" in detail(certificate, guarantee)


def test_a_detail_says_whether_a_final_state_was_compared(tmp_path):
    certificate = judged(tmp_path)
    assert detail(certificate, "exact resume").endswith("and the final state equal")
    assert detail(certificate, "layout freedom").endswith("and the final state equal")
    assert detail(certificate, "repeatability").endswith("equal; repeat saves no final state")


def test_a_refuted_guarantee_weighs_more_than_an_unverified_one(tmp_path):
    changed = {"repeat": {"end": None}, "resume": {"change": differs("parameters")}}
    assert judged(tmp_path, changed).verdict.outcome is Outcome.DIFFERENT


def test_one_number_of_processes_proves_the_rest_and_says_what_was_not_tried(tmp_path):
    certificate = judged(tmp_path, processes=(1,))
    assert certificate.verdict.outcome is Outcome.SAME
    assert certificate.verdict.title == "proven, layout freedom not tried"
    assert outcomes(certificate) == {
        "repeatability": "proven",
        "exact resume": "proven",
        "layout freedom": "not tried",
    }
    document = json.loads(certificate.to_json())
    assert document["verdict"] == "proven"
    assert document["guarantees"][2]["detail"] == "one number of processes"


def test_on_one_number_of_processes_the_second_resume_is_an_exact_resume(tmp_path):
    changed = {"resume-again": {"change": differs("moments")}}
    certificate = judged(tmp_path, changed, processes=(1,))
    assert outcomes(certificate)["exact resume"] == "refuted"


def test_a_control_that_changes_only_its_own_stream_is_missed(tmp_path):
    certificate = judged(tmp_path, {"without-moments": {"change": differs("moments")}})
    assert certificate.verdict.outcome is Outcome.UNVERIFIED
    assert certificate.verdict.reasons == ("without moments",)


def test_a_control_that_changes_nothing_is_inert_only_with_a_reviewed_reason(tmp_path):
    silent = load("nano", ["model.dropout=0.0"])
    changed = {"without-random": {"change": differs("random")}}
    certificate = judged(tmp_path / "a", changed, recipe=silent)
    (control,) = [c for c in certificate.controls if c.name == "without random"]
    assert control.outcome == "inert"
    assert "model.dropout is 0" in control.detail
    assert certificate.verdict.outcome is Outcome.SAME
    assert judged(tmp_path / "b", changed).verdict.outcome is Outcome.UNVERIFIED


@pytest.mark.parametrize(
    ("changes", "is_inert"),
    [
        (["model.pattern=M-"], True),
        (["model.pattern=M-", "model.mtp_pattern=*E"], False),
        (["model.pattern=M-", "model.mtp_pattern=*E", "model.mtp_depth=0"], True),
        (["model.pattern=ME"], False),
        (["model.pattern=ME", "model.bias_rate=0.0"], True),
    ],
)
def test_buffers_are_inert_only_where_no_block_has_an_expert_bias_that_moves(changes, is_inert):
    applies, _ = INERT["buffers"]
    assert applies(load("nano", changes)) is is_inert


def test_a_certificate_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    certificate = judged(tmp_path / "arms")
    certificate.write(tmp_path)
    assert json.loads((tmp_path / "certificate.json").read_text())["verdict"] == "proven"
    other = replace(certificate, steps=9)

    def full(path, text):
        path.write_bytes(text[:10])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("bitstep.investigate.certificate.write_text", full)
    with pytest.raises(RunError, match=r"certificate\.json: No space left on device"):
        other.write(tmp_path)
    assert json.loads((tmp_path / "certificate.json").read_text())["steps"] == STEPS
    assert not list(tmp_path.glob("*.part"))
