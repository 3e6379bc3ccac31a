"""A run that goes on, a run that is compared with another, and runs of several lives."""

from __future__ import annotations

import functools
import json
import signal
import subprocess
import sys
import threading
import time

import pytest
from check_fakes import PARAMETERS, bits, data_parallel, write

from bitstep.check import Check, Kind
from bitstep.cli import run as cli
from bitstep.errors import RunError
from bitstep.records import Outcome
from bitstep.trace import TraceWriter

WEIGHT, _ = PARAMETERS


class Live:
    """A recording that is written step by step, rank by rank."""

    def __init__(self, run, world, of):
        self.of = of
        self.seq = [0] * world
        self.traces = [TraceWriter(run / "attempt-000", rank) for rank in range(world)]

    def step(self, rank, step):
        rows = list(self.of(rank, step).records(self.seq[rank]))
        self.seq[rank] += len(rows)
        self.traces[rank].write(rows)
        self.traces[rank].end_step(step, bits("root", step))

    def close(self):
        for trace in self.traces:
            trace.close()


def test_a_step_is_checked_as_soon_as_all_ranks_have_written_it(tmp_path):
    live = Live(tmp_path, 2, data_parallel(2, {(1, 3, f"param {WEIGHT} 1"): 7}))
    for step in range(3):
        for rank in (0, 1):
            live.step(rank, step)
    check = Check(tmp_path)
    assert check.advance() == []
    live.step(0, 3)
    assert check.advance() == []
    live.step(1, 3)
    (found,) = check.advance()
    assert (found.kind, found.step) == (Kind.REPLICAS, 3)
    assert check.advance() == []
    assert not check.ended
    live.close()
    check.advance()
    assert check.ended
    assert check.result().findings == (found,)


def test_a_rank_that_begins_late_is_waited_for(tmp_path):
    of = data_parallel(2, {(1, 0, f"param {WEIGHT} 0"): 7})
    first = Live(tmp_path, 1, of)
    first.step(0, 0)
    first.step(0, 1)
    check = Check(tmp_path)
    assert check.advance() == []
    write(tmp_path, [1], range(5), of)
    for step in range(2, 5):
        first.step(0, step)
    first.close()
    (found,) = check.advance()
    assert (found.kind, found.step) == (Kind.REPLICAS, 0)


def test_following_gives_what_checking_at_the_end_gives(tmp_path):
    live = Live(tmp_path, 3, data_parallel(3, {(1, 4, f"grad {WEIGHT} 0"): 7}))
    check = Check(tmp_path)
    for step in range(8):
        for rank in (2, 0, 1):
            live.step(rank, step)
            check.advance()
    live.close()
    assert check.result() == Check(tmp_path).result()


def test_a_rank_that_has_written_nothing_is_not_waited_for_for_ever(tmp_path):
    live = Live(tmp_path, 3, data_parallel(4, {(1, 3, f"param {WEIGHT} 1"): 7}))
    check = Check(tmp_path)
    found = []
    for step in range(6):
        for rank in range(3):
            live.step(rank, step)
        found += check.advance()
    assert [item.ranks for item in found] == [(1,)]


def test_a_run_that_was_killed_is_checked_up_to_its_last_whole_step(tmp_path):
    run = write(tmp_path, (0, 1), range(5), data_parallel(2), close=False)
    checked = Check(run).result()
    assert checked.outcome == Outcome.UNVERIFIED
    assert checked.steps == (1, 4)
    assert checked.reasons[0].startswith("the recording is not whole: run, attempt 0: cut: ")


def test_damage_is_never_a_finding(tmp_path):
    run = write(tmp_path, (0, 1), range(8), data_parallel(2))
    stream = run / "attempt-000" / "rank-00001.000.arrows"
    raw = bytearray(stream.read_bytes())
    raw[len(raw) * 2 // 3] ^= 1
    stream.write_bytes(raw)
    checked = Check(run).result()
    assert checked.findings == ()
    assert checked.outcome == Outcome.UNVERIFIED
    assert "damaged" in checked.damage[0]


def test_each_life_of_a_run_is_checked_by_itself(tmp_path):
    write(tmp_path, (0, 1), range(5), data_parallel(2), close=False)
    faults = {(1, 3, f"param {WEIGHT} 1"): 7}
    write(tmp_path, (0, 1), range(6), data_parallel(2, faults), attempt=1)
    (found,) = Check(tmp_path).result().findings
    assert found.attempt == 1


def test_no_run_is_an_error(tmp_path):
    with pytest.raises(RunError):
        Check(tmp_path / "nowhere")


# -- the expected run -----------------------------------------------------------------------


def test_a_run_that_repeats_another_is_as_expected(tmp_path):
    a = write(tmp_path / "a", (0, 1), range(6), data_parallel(2))
    b = write(tmp_path / "b", (0, 1), range(6), data_parallel(2))
    checked = Check(b, a).result()
    assert checked.outcome == Outcome.SAME
    # Two parameters at the start, 10 records in step 1, 12 in the others; level and world are none.
    assert checked.compared.expected == 2 * (2 + 10 + 4 * 12)


def test_the_first_record_that_is_not_as_expected_is_named(tmp_path):
    a = write(tmp_path / "a", (0,), range(6), data_parallel(1))
    faults = {(0, 4, f"grad {WEIGHT} 0"): 7}
    b = write(tmp_path / "b", (0,), range(6), data_parallel(1, faults))
    checked = Check(b, a).result()
    (found,) = checked.findings
    assert (found.kind, found.step, found.ranks) == (Kind.EXPECTED, 4, (0,))
    assert (found.place.module, found.place.slot) == (WEIGHT, "grad")
    assert found.title == (
        f"step 4 of rank 0: grad of {WEIGHT}, phase optimizer, has other bits than expected"
    )
    assert checked.hints == (f"bitstep diff {a} {b}",)


def test_a_run_that_is_shorter_than_expected_agrees_as_far_as_it_goes(tmp_path):
    a = write(tmp_path / "a", (0, 1), range(9), data_parallel(2))
    b = write(tmp_path / "b", (0, 1), range(4), data_parallel(2))
    assert Check(b, a).result().outcome == Outcome.SAME


def test_what_follows_the_last_step_of_the_shorter_run_is_not_missed(tmp_path):
    def of(rank, step):
        # Something that is only there where another step follows.
        found = data_parallel(1)(rank, step)
        return found.add("optimizer", "buffer", "Net.next", bits("next", step), 1)

    def ended(rank, step):
        return of(rank, step) if step < 3 else data_parallel(1)(rank, step)

    a, b = write(tmp_path / "a", [0], range(9), of), write(tmp_path / "b", [0], range(4), ended)
    assert Check(b, a).result().findings == ()
    c = write(tmp_path / "c", [0], range(6), ended)
    (found,) = Check(c, a).result().findings
    assert found.title == (
        "step 3 of rank 0: buffer of Net.next, phase optimizer, is in the expected run alone"
    )


def test_steps_that_the_expected_run_lacks_are_noted(tmp_path):
    a = write(tmp_path / "a", (0, 1), range(4), data_parallel(2))
    b = write(tmp_path / "b", (0, 1), range(6), data_parallel(2))
    assert "2 steps are not in the expected run, first step 4" in Check(b, a).result().notes


# -- the command ----------------------------------------------------------------------------


def test_the_command_says_what_it_found(tmp_path, capsys):
    run = write(tmp_path, (0, 1), range(6), data_parallel(2, {(1, 3, f"param {WEIGHT} 1"): 7}))
    assert cli(["check", str(run), "-q"]) == 1
    out, err = capsys.readouterr()
    assert out.splitlines()[:2] == [
        "different: 1 finding, in step 3",
        f"replicas   {WEIGHT} (param) differs between ranks 0 and 1 since step 3",
    ]
    assert err == ""


@pytest.mark.parametrize(("ranks", "status"), [((0, 1), 0), ((0,), 2)])
def test_the_status_says_agreed_or_could_not_tell(tmp_path, capsys, ranks, status):
    run = write(tmp_path, ranks, range(6), data_parallel(len(ranks)))
    assert cli(["check", str(run), "--json"]) == status
    found = json.loads(capsys.readouterr().out)
    assert found["status"] == status
    assert found["findings"] == []


def test_stop_without_follow_is_refused(tmp_path, capsys):
    assert cli(["check", str(tmp_path), "--stop"]) == 2
    assert "--stop ends --follow" in capsys.readouterr().err


def test_follow_ends_with_the_run(tmp_path, capsys):
    live = Live(tmp_path, 2, data_parallel(2, {(1, 3, f"param {WEIGHT} 1"): 7}))

    for rank in (0, 1):
        live.step(rank, 0)

    def train():
        for step in range(1, 6):
            for rank in (0, 1):
                live.step(rank, step)
                time.sleep(0.05)
        live.close()

    thread = threading.Thread(target=train)
    thread.start()
    status = cli(["check", str(tmp_path), "--follow", "--json"])
    thread.join()
    first, last = map(json.loads, capsys.readouterr().out.splitlines())
    assert status == 1
    assert (first["kind"], first["step"]) == ("replicas", 3)
    assert (last["outcome"], last["steps"]) == ("different", [1, 5])


def test_follow_stops_at_the_first_finding_while_the_run_goes_on(tmp_path, capsys):
    live = Live(tmp_path, 2, data_parallel(2, {(1, 3, f"param {WEIGHT} 1"): 7}))
    for step in range(5):
        for rank in (0, 1):
            live.step(rank, step)
    assert cli(["check", str(tmp_path), "--follow", "--stop"]) == 1
    assert capsys.readouterr().out.startswith("replicas: ")
    live.close()


def test_ctrl_c_ends_following_with_what_is_known(tmp_path):
    live = Live(tmp_path, 2, data_parallel(2, {(1, 3, f"param {WEIGHT} 1"): 7}))
    for step in range(5):
        for rank in (0, 1):
            live.step(rank, step)
    command = [sys.executable, "-m", "bitstep", "check", str(tmp_path), "--follow"]
    # A shell's background jobs ignore SIGINT, and the tests may be one.
    heeded = functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, preexec_fn=heeded)
    assert process.stdout.readline().startswith("replicas: ")
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=30)
    assert process.returncode == 1
    assert out.startswith("different: ")
