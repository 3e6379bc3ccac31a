"""An attempt from start to end: restored anywhere, it has the bits of one that never stopped."""

import pytest
from engine_fakes import TINY, tiny_engine, write_corpus

from bitstep import observe
from bitstep.checkpoint import restore, save
from bitstep.errors import BitstepError
from bitstep.faults import Fault
from bitstep.launch.worker import join, settle
from bitstep.state.streams import STREAMS
from bitstep.trace import read_trace
from bitstep.trace.run import read_run
from bitstep.train.documents import documents_of
from bitstep.train.loop import pretrain
from bitstep.train.resolve import resolve
from bitstep.train.step import state_roots, train_step


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_corpus(tmp_path_factory.mktemp("corpus"))


def run_attempt(run, folder, *changes, resume=False, stop_after=None, fault=None):
    settle(1)
    words = [*TINY, f"data.folder={str(folder)!r}", "data.held_out=0.3", *changes]
    seen = []
    end = pretrain(
        resolve("nano", words, run, resume),
        run,
        join(),
        command=["pretrain", "nano"],
        should_stop=lambda: stop_after is not None and len(seen) + 1 >= stop_after,
        report=seen.append,
        fault=fault,
    )
    return end, seen


def damage(checkpoint):
    file = checkpoint / "rank-00000.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)


def test_restored_at_every_step_it_has_the_bits_of_one_that_never_stopped(folder, tmp_path):
    whole, saving = tiny_engine(folder), tiny_engine(folder)
    expected = [state_roots(whole)] + [train_step(whole).roots for _ in range(6)]
    for step in range(7):
        if step:
            train_step(saving)
        path = save(tmp_path, step, saving.state, saving.processes)
        fresh = tiny_engine(folder)
        assert restore(path, fresh.state, fresh.processes).root == expected[step]["state"]
        assert [train_step(fresh).roots for _ in range(6 - step)] == expected[step + 1 :]


@pytest.mark.parametrize("stream", STREAMS)
def test_a_stream_left_out_of_the_restore_changes_another_stream(folder, tmp_path, stream):
    engine = tiny_engine(folder)
    for _ in range(3):
        train_step(engine)
    path = save(tmp_path, 3, engine.state, engine.processes)
    whole, without = tiny_engine(folder), tiny_engine(folder)
    restore(path, whole.state, whole.processes)
    restore(path, without.state, without.processes, omit=stream)
    changed = set()
    for _ in range(3):
        right, wrong = train_step(whole), train_step(without)
        changed |= {name for name in STREAMS if right.roots[name] != wrong.roots[name]}
        if stream == "step":  # the same work under another number: compared by what is recorded
            changed |= {"number"} if right.step != wrong.step else set()
    assert changed - {stream}


def test_a_recorder_is_told_the_steps_also_of_an_attempt_that_goes_on(folder, tmp_path):
    changes = ["run.save_every=2", "run.eval_every=2"]
    found = []
    for attempt in range(2):
        with observe.record(tmp_path / f"recording-{attempt}", level="step"):
            run_attempt(tmp_path / "run", folder, *changes, resume=attempt > 0, stop_after=4)
        found.append(read_trace(tmp_path / f"recording-{attempt}" / "attempt-000"))
    assert [list(trace.steps) for trace in found] == [[0, 1, 2, 3, 4], [0, 5, 6]]
    # What was restored is what was left behind.
    assert found[0].steps[4] == found[1].steps[0]


def test_a_run_has_a_row_for_every_step_and_ends_with_its_marker(folder, tmp_path):
    end, seen = run_attempt(tmp_path / "run", folder, "run.eval_every=3")
    (attempt,) = read_run(tmp_path / "run")
    assert (end.status, end.step) == ("finished", 6)
    assert attempt.status == "finished"
    assert attempt.trace.complete
    assert sorted(attempt.trace.steps) == [0, 1, 2, 3, 4, 5, 6]
    assert attempt.trace.steps[6] == end.root
    assert [p.evaluation is not None for p in seen] == [False, False, True, False, False, True]


def test_the_rows_of_a_step_are_in_the_order_of_causes(folder, tmp_path):
    run_attempt(tmp_path / "run", folder, "run.eval_every=1", stop_after=1)
    (attempt,) = read_run(tmp_path / "run")
    rows = [r.site for r in attempt.trace.records() if r.site.step == 1]
    phases = list(dict.fromkeys(site.phase for site in rows))
    assert phases == ["data", "forward", "reduce", "clip", "optimizer", "eval"]
    slots = [site.slot for site in rows]
    assert slots.index("root.gradients") < slots.index("metric.grad_norm") < slots.index("root")


def test_a_stop_saves_at_the_step_boundary_and_resumes_to_the_same_root(folder, tmp_path):
    whole, _ = run_attempt(tmp_path / "whole", folder)
    stopped, seen = run_attempt(tmp_path / "run", folder, stop_after=2)
    assert (stopped.status, stopped.step) == ("stopped", 2)
    assert seen[-1].saved.name == "step-00000002"
    resumed, _ = run_attempt(tmp_path / "run", folder, resume=True)
    assert (resumed.status, resumed.step, resumed.root) == ("finished", 6, whole.root)
    first, second = read_run(tmp_path / "run")
    assert (first.status, second.status) == ("stopped", "finished")
    assert second.trace.steps[2] == first.trace.steps[2]


def test_a_change_on_resume_is_recorded_as_a_branch(folder, tmp_path):
    from bitstep.contract.manifest import read_manifest

    run_attempt(tmp_path / "run", folder, stop_after=2)
    run_attempt(tmp_path / "run", folder, "optimizer.lr=0.5", resume=True)
    first, second = read_manifest(tmp_path / "run")
    assert second.manifest.declared == ("recipe.optimizer.lr",)
    assert second.parent["attempt"] == 0
    assert second.parent["step"] == 2
    assert first.manifest.declared == ()


def test_a_corpus_that_changed_is_refused_on_resume(folder, tmp_path):
    own = write_corpus(tmp_path / "corpus")
    run_attempt(tmp_path / "run", own, stop_after=2)
    (own / "document-00.txt").write_text("another text\n" * 40)
    with pytest.raises(BitstepError, match=r"data.digest was .*, is "):
        run_attempt(tmp_path / "run", own, resume=True)


def test_a_directory_with_another_run_is_refused_and_left_as_it_was(folder, tmp_path):
    run_attempt(tmp_path / "run", folder, stop_after=1)
    before = sorted(path.name for path in (tmp_path / "run").rglob("*"))
    with pytest.raises(BitstepError, match="is not empty"):
        run_attempt(tmp_path / "run", folder)
    assert sorted(path.name for path in (tmp_path / "run").rglob("*")) == before


def test_old_checkpoints_go_and_the_kept_ones_stay(folder, tmp_path):
    run_attempt(tmp_path / "run", folder, "run.save_every=1", "run.keep_last=2", "run.keep_every=3")
    names = sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir())
    assert names == ["step-00000003", "step-00000005", "step-00000006"]


def test_a_damaged_checkpoint_is_skipped_and_the_older_one_taken(folder, tmp_path, caplog):
    run = tmp_path / "run"
    end, _ = run_attempt(run, folder, "run.save_every=2")
    damage(run / "checkpoints" / "step-00000006")
    again, _ = run_attempt(run, folder, resume=True)
    assert again.root == end.root
    assert "skipped a checkpoint" in caplog.text
    assert "step-00000006" in caplog.text


def test_a_damaged_checkpoint_never_takes_the_place_of_a_good_one(folder, tmp_path):
    run = tmp_path / "run"
    run_attempt(run, folder, "run.save_every=2")
    damage(run / "checkpoints" / "step-00000006")
    changed = ("run.keep_last=1", "run.save_every=1")
    run_attempt(run, folder, *changed, resume=True, stop_after=1)
    names = sorted(path.name for path in (run / "checkpoints").iterdir())
    assert names[0].startswith("damaged-step-00000006.")
    assert names[1:] == ["step-00000005"]
    end, _ = run_attempt(run, folder, resume=True)
    assert end.step == 6


def test_a_resume_without_checkpoints_says_that_it_begins_again(folder, tmp_path, caplog):
    run_attempt(tmp_path / "run", folder)
    run_attempt(tmp_path / "run", folder, resume=True)
    assert "attempt 1 has no checkpoint: it begins at the first step" in caplog.text


def test_fewer_steps_than_the_checkpoint_has_are_refused(folder, tmp_path):
    from bitstep.contract.manifest import read_manifest

    run_attempt(tmp_path / "run", folder, stop_after=4)
    with pytest.raises(BitstepError, match=r"is at step 4, run.steps is 3: raise it"):
        run_attempt(tmp_path / "run", folder, "run.steps=3", resume=True)
    assert len(read_manifest(tmp_path / "run")) == 1


def test_one_logical_rank_trains(folder, tmp_path):
    end, _ = run_attempt(tmp_path / "run", folder, "layout.fan_ins=[]")
    assert (end.status, end.step) == ("finished", 6)


def test_a_fault_is_in_the_manifest(folder, tmp_path):
    from bitstep.contract.manifest import read_manifest

    run_attempt(tmp_path / "run", folder, stop_after=1, fault=Fault("left-fold"))
    assert read_manifest(tmp_path / "run")[0].manifest.keys["program.fault"] == "left-fold"


def test_a_run_that_is_finished_resumes_to_nothing(folder, tmp_path):
    end, _ = run_attempt(tmp_path / "run", folder, "run.save_every=6")
    again, seen = run_attempt(tmp_path / "run", folder, resume=True)
    assert (again.step, again.root, seen) == (6, end.root, [])


def test_a_step_names_its_documents_and_checks_them_against_the_trace(folder, tmp_path):
    run_attempt(tmp_path / "run", folder, stop_after=3)
    named = documents_of(tmp_path / "run", 2)
    engine = tiny_engine(folder)
    expected = engine.training_data.documents(engine.recipe.sequences_per_step, 4)
    assert named == expected
    with pytest.raises(BitstepError, match="has not recorded step 9"):
        documents_of(tmp_path / "run", 9)


def test_documents_of_a_corpus_that_changed_are_refused(tmp_path):
    own = write_corpus(tmp_path / "corpus")
    run_attempt(tmp_path / "run", own, stop_after=1)
    (own / "document-03.txt").write_text("another text\n" * 40)
    with pytest.raises(BitstepError, match="has changed"):
        documents_of(tmp_path / "run", 1)


def test_documents_of_a_branch_with_other_data_are_refused_for_the_steps_before_it(
    folder, tmp_path
):
    run_attempt(tmp_path / "run", folder, stop_after=2)
    run_attempt(tmp_path / "run", folder, "run.seed=8", resume=True)
    with pytest.raises(BitstepError, match="the recorded batch is not the one of this recipe"):
        documents_of(tmp_path / "run", 1)
    assert len(documents_of(tmp_path / "run", 4)) == 4
