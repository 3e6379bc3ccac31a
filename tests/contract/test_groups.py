"""The groups of a program: measured as they are made, told to rank 0, and never in its way."""

from __future__ import annotations

import importlib
import json

import pytest
import torch
import torch.distributed as dist
from group_programs import in_world

from bitstep.contract import groups
from bitstep.contract.groups import NOT_ASKED, measure_group, process_groups
from bitstep.contract.groups_follow import MAKERS, follow_groups
from bitstep.contract.groups_store import MOST_BYTES, agree, publish, published
from bitstep.contract.summation_measure import device_of
from bitstep.errors import ContractError


@pytest.fixture
def store():
    return dist.HashStore()


@pytest.fixture
def alone(store):
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_without_a_process_group_there_is_no_table():
    assert process_groups() == {}


def test_each_group_stands_under_its_ranks_and_groups_of_the_same_ranks_are_counted(alone):
    dist.new_group([0])
    table = process_groups()
    assert list(table) == ["0", "0_again2"]
    assert table["0"] == {
        "name": "default_pg",
        "ranks": "0",
        "backend": "gloo",
        "device": "",
        "measured": "one rank adds nothing",
    }


def test_groups_of_a_mesh_and_others_are_known_on_every_rank_once_their_members_measured_them():
    said = in_world(4, "followed")
    table = said[0]["groups"]
    assert list(table) == ["0-1", "0-3", "0_2", "0_2_3", "1_3", "1_3_again2", "2-3", "3_1"]
    assert table["2-3"]["name"] == "mesh_tp"
    assert table["0_2"]["name"] == "mesh_dp"
    assert table["0-3"]["sums"]["all_reduce"]["float32"]["1024"].startswith("ring down, 4 chunks")
    measured = {name: of["measured"] for name, of in table.items()}
    # The last was made after undo: nobody added a collective.
    assert measured == dict.fromkeys(table, "yes") | {"0_2_3": f"no: {NOT_ASKED}"}
    # The members have other ranks in these two; the sum of two has one order all the same.
    assert table["3_1"]["sums"] == table["1_3"]["sums"]
    assert said[1]["groups"] == {name: of for name, of in table.items() if name != "0_2_3"}
    assert [rank["given_back"] for rank in said] == [True] * 4
    assert [rank["drew"] for rank in said] == [False] * 4
    assert [rank["sums"] for rank in said] == [[3.0] * 3, None, [3.0] * 3, [3.0] * 3]


def test_who_does_not_come_or_cannot_costs_a_signature_and_the_program_goes_on():
    said = in_world(4, "awkward")
    why = "no: not every member came within 0.5 s"
    assert [rank["without_hooks"] for rank in said] == [why, f"no: {NOT_ASKED}", why, why]
    assert [rank["vetoed"] for rank in said] == ["no device"] * 4
    assert [rank["failed"] for rank in said] == ["TypeError: no probes"] * 4
    assert [rank["disagreed"] for rank in said] == ["the members got different sums"] * 4
    assert [rank["total"] for rank in said] == [[6.0] * 7] * 4


class OnCuda:
    """A group of NCCL, as far as `device_of` looks at one."""

    bound_device_id = None


@pytest.fixture
def eight_gpus(monkeypatch):
    monkeypatch.setattr(dist, "get_backend_config", lambda group: "cpu:gloo,cuda:nccl")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)


def test_nccl_is_measured_on_the_device_that_the_group_is_bound_to(eight_gpus):
    group = OnCuda()
    group.bound_device_id = torch.device("cuda", 5)
    assert device_of(group) == torch.device("cuda", 5)


def test_nccl_is_measured_on_the_device_that_the_process_has_chosen(eight_gpus, monkeypatch):
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert device_of(OnCuda()) == torch.device("cuda", 3)


def test_nccl_is_not_measured_before_the_process_has_chosen_a_device(eight_gpus, monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "3")
    with pytest.raises(ContractError, match="give init_process_group a device_id"):
        device_of(OnCuda())


def test_a_backend_that_does_not_add_is_not_asked_to():
    importlib.import_module("torch.testing._internal.distributed.fake_pg")  # registers it
    store = dist.HashStore()
    dist.init_process_group("fake", store=store, rank=0, world_size=4)
    try:
        signature = measure_group(dist.group.WORLD, seconds=1)
        assert signature.problem == "its backend was never tried: fake"
        assert process_groups(0)["0-3"]["measured"].startswith("no: its backend")
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("group", [None, dist.GroupMember.NON_GROUP_MEMBER])
def test_who_is_no_member_measures_nothing(group):
    assert measure_group(group) is None


def test_following_wraps_every_name_and_gives_each_back():
    modules = [dist, dist.distributed_c10d, dist.device_mesh]
    before = [getattr(module, name) for module in modules for name in MAKERS]
    undo = follow_groups()
    during = [getattr(module, name) for module in modules for name in MAKERS]
    assert not set(before) & set(during)
    undo()
    assert [getattr(module, name) for module in modules for name in MAKERS] == before


def test_a_wrapper_of_somebody_else_is_left_in_its_place(monkeypatch):
    undo = follow_groups()
    ours = dist.new_group

    def theirs(*args, **kwargs):
        return ours(*args, **kwargs)

    monkeypatch.setattr(dist, "new_group", theirs)
    undo()
    assert dist.new_group is theirs
    monkeypatch.undo()
    dist.new_group = ours.__wrapped__


def test_all_members_get_one_answer(store):
    assert agree(store, "alone", 1, "", 1) == ""
    assert agree(store, "late", 2, "", 0.01) == "not every member came within 0.01 s"
    assert agree(store, "late", 2, "", 1) == "not every member came within 0.01 s"
    assert agree(store, "cannot", 2, "no device", 1) == "no device"
    assert agree(store, "cannot", 2, "", 1) == "no device"


def test_a_group_elsewhere_is_waited_for_but_not_for_long(store):
    publish(store, {"ranks": "1-2", "id": "7", "made": 0})
    assert [table["ranks"] for table in published(store, ["1-2"], seconds=60)] == ["1-2"]
    assert [table["ranks"] for table in published(store, ["1-2", "3-4"], seconds=0.05)] == ["1-2"]


@pytest.mark.parametrize(
    "text",
    [
        json.dumps([1]),
        json.dumps({"ranks": "1-2"}),
        json.dumps({"ranks": ["1"], "id": "7", "made": 0}),
        json.dumps({"ranks": "1-2", "id": "7", "made": "first"}),
        json.dumps({"ranks": "1-2", "id": "7", "made": 0, "more": "x" * MOST_BYTES}),
    ],
    ids=["list", "short", "ranks", "made", "long"],
)
def test_what_is_no_table_is_not_believed(store, text):
    store.set(f"bitstep/groups/{store.add('bitstep/groups', 1)}", text)
    assert published(store, [], seconds=0) == []


def test_an_answer_that_was_announced_and_never_came_is_not_waited_for(store):
    store.add("bitstep/groups", 1)
    assert published(store, [], seconds=0) == []


def test_a_store_that_is_gone_leaves_the_own_groups(alone, monkeypatch):
    measure_group(dist.group.WORLD)

    def gone():
        raise RuntimeError("connection reset")

    monkeypatch.setattr(groups, "_store", gone)
    assert list(process_groups()) == ["0"]
