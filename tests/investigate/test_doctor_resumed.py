"""What a program lost when it restored, and what is saved of one rank alone: by tiny fakes."""

import pytest

from bitstep.investigate.doctor.checkpoint import Facts, of_other_ranks
from bitstep.investigate.doctor.resumed import resumed
from bitstep.investigate.doctor.saved import Saved
from bitstep.observe.examine.leaves import Leaf


def number(path, value):
    return [path, f"number {value}", True, str(value)]


def tensor(path, bits):
    return [path, f"float32 (2,) {bits:016x}", False, "float32 (2,)"]


FRESH = {
    "attribute/bias": [tensor("Net.bias", 0)],
    "counter/trainer.seen": [number("trainer.seen", 0)],
    "moments/exp_avg": [],
}
SAVED = {
    "attribute/bias": [tensor("Net.bias", 7)],
    "counter/trainer.seen": [number("trainer.seen", 8)],
    "moments/exp_avg": [tensor("Net.a.exp_avg", 1), tensor("Net.b.exp_avg", 2)],
}


def process(inventory, **changes):
    plain = {"world": 1, "inventory": {"0": inventory}, "at_save": {}, "saves": [], "loads": []}
    return {**plain, "loaders": [], **changes}


def lost(now, loaders=((), ()), loads="a.pt"):
    before, after = loaders
    saver = process(FRESH, at_save=SAVED, saves=[{"path": "a.pt"}], loaders=list(before))
    other = process(now, loads=[{"path": loads}], loaders=list(after))
    effects = dict.fromkeys(SAVED, True)
    return list(resumed([{0: saver}, {0: other}], list(SAVED), effects))


def test_a_program_that_gets_all_of_it_back_lost_nothing():
    assert lost(SAVED) == []


def test_a_process_that_loaded_another_file_is_not_compared():
    assert lost(FRESH, loads="b.pt") == []


def test_a_tensor_that_came_back_with_other_bits_is_named():
    (found,) = lost({**SAVED, "attribute/bias": FRESH["attribute/bias"]})
    assert found.severity == "missed by a checkpoint"
    assert found.what == "the plain tensor attribute bias did not come back: 1 of 1 differ"
    assert "0000000000000007 when it was saved" in found.evidence


def test_a_number_is_lost_only_if_it_is_that_of_a_fresh_process():
    assert lost({**SAVED, "counter/trainer.seen": [number("trainer.seen", 12)]}) == []
    (found,) = lost({**SAVED, "counter/trainer.seen": FRESH["counter/trainer.seen"]})
    assert "trainer.seen was 8 when it was saved, and is 0" in found.evidence


def test_moments_that_came_back_at_other_parameters_are_said_to_be_swapped():
    swapped = [tensor("Net.a.exp_avg", 2), tensor("Net.b.exp_avg", 1)]
    (found,) = lost({**SAVED, "moments/exp_avg": swapped})
    assert found.why.startswith("they came back at other parameters")
    (other,) = lost({**SAVED, "moments/exp_avg": [tensor("Net.a.exp_avg", 9), swapped[0]]})
    assert not other.why.startswith("they came back at other parameters")


@pytest.mark.parametrize(("batches", "count"), [(["a", "b", "c"], 1), (["c", "d"], 0), (["a"], 0)])
def test_data_that_begin_with_the_same_batches_again_are_said_to_restart(batches, count):
    before = [{"name": "train.py:4", "batches": ["a", "b", "c"]}]
    after = [{"name": "train.py:4", "batches": batches}]
    found = lost(SAVED, (before, after))
    assert [f.what for f in found] == [
        "the data start again from the beginning after a restore"
    ] * count


def ranks(of_rank_1):
    one, other = SAVED, {**SAVED, **of_rank_1}
    return {0: process(FRESH) | {"inventory": {"5": one}}, 1: {"inventory": {"5": other}}}


def of_ranks(of_rank_1, leaves, effect=True):
    saved = Saved(leaves=tuple(Leaf(*leaf) for leaf in leaves), step=5)
    facts = Facts(list(SAVED), saved, {"counter/trainer.seen": effect})
    return list(of_other_ranks(ranks(of_rank_1), facts))


def test_a_number_of_another_rank_that_nobody_saved_is_named_with_that_rank():
    own = {"counter/trainer.seen": [number("trainer.seen", 9)]}
    (found,) = of_ranks(own, [number("seen", 8)])
    assert found.severity == "missed by a checkpoint"
    assert found.what == "the number trainer.seen of rank 1 would be missed"
    assert "rank 1 has 9; seen is saved as 8, which is of another rank" in found.evidence


def test_ranks_that_agree_or_are_saved_each_miss_nothing():
    own = {"counter/trainer.seen": [number("trainer.seen", 9)]}
    assert of_ranks({}, [number("seen", 8)]) == []
    assert of_ranks(own, [number("seen", 8), number("rank1.seen", 9)]) == []
    assert of_ranks(own, [number("seen", 8)], effect=False) == []
