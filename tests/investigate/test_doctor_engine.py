"""What the doctor says of our own engine is what a proof of it says."""

from dataclasses import replace

from bitstep.investigate.arms import ArmReport
from bitstep.investigate.certificate import Certificate
from bitstep.investigate.certificate import Finding as Proven
from bitstep.investigate.doctor.engine import findings_of

CERTIFICATE = Certificate(
    recipe="nano",
    changes=(),
    steps=8,
    processes=(1,),
    logical_ranks=4,
    fault=None,
    killed_after="",
    final_root="",
    rows_compared=10,
    guarantees=(
        Proven("repeatability", ("reference", "repeat"), "proven", ""),
        Proven("layout freedom", (), "not tried", "one number of processes"),
    ),
    controls=(
        Proven("without moments", ("without-moments",), "caught", "differs later: parameters"),
        Proven("without random", ("without-random",), "inert", "nothing is drawn"),
    ),
    arms=(ArmReport("reference", 1, 1.0, 0),),
    contract={},
)


def said(certificate, tmp_path):
    return [(f.severity, f.what) for f in findings_of(certificate, tmp_path)]


def test_a_proof_that_holds_gives_one_note_that_names_every_control(tmp_path):
    (found,) = findings_of(CERTIFICATE, tmp_path)
    assert found.severity == "note"
    assert "2 controls" in found.what
    assert "without moments (caught); without random (inert)" in found.evidence


def test_a_guarantee_that_is_refuted_differs(tmp_path):
    broken = Proven("exact resume", ("resume",), "refuted", "resume: step 5 differs")
    found = said(replace(CERTIFICATE, guarantees=(broken,)), tmp_path)
    assert found[0] == ("differs", "exact resume is refuted")


def test_a_control_that_nothing_shows_is_unknown(tmp_path):
    missed = Proven("without data", ("without-data",), "missed", "no other stream differs")
    found = said(replace(CERTIFICATE, controls=(missed,)), tmp_path)
    assert found[0] == ("unknown", "nothing shows what a checkpoint without data would change")
