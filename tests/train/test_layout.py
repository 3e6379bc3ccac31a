import subprocess
import sys

import pytest

from bitstep.errors import LayoutError, UsageError
from bitstep.faults import Fault, parse_fault
from bitstep.train.layout import Layout, boundaries


def test_processes_share_the_leaves_without_gap_or_overlap():
    for processes in (1, 2, 4, 8):
        leaves = [
            leaf
            for process in range(processes)
            for leaf in Layout((2, 2, 2), processes, process, processes).leaves()
        ]
        assert sorted(leaves) == list(range(8))


def test_microbatch_m_of_process_p_is_leaf_m_times_w_plus_p():
    assert Layout((2, 2, 2), 4, 3, 4).leaves() == (3, 7)
    assert Layout((3, 2), 3, 1, 3).leaves() == (1, 4)


def test_the_processes_split_the_fan_ins_at_their_level():
    layout = Layout((2, 3, 5), 6, 0, 6)
    assert (layout.across, layout.own) == ((2, 3), (5,))
    assert (layout.logical_ranks, layout.microbatches, layout.nodes) == (30, 5, 1)


def test_nodes_split_the_low_fan_ins_again():
    layout = Layout((2, 3, 5), 30, 7, 2)
    assert (layout.within_node, layout.across_nodes, layout.own) == ((2,), (3, 5), ())
    assert layout.nodes == 15


def test_one_process_per_node_leaves_nothing_within():
    layout = Layout((2, 2), 4, 0, 1)
    assert (layout.within_node, layout.across_nodes) == ((), (2, 2))


def test_no_fan_ins_are_one_leaf():
    layout = Layout((), 1, 0, 1)
    assert (layout.logical_ranks, layout.leaves(), layout.across, layout.own) == (1, (0,), (), ())


def test_2432_leaves_allow_only_the_prefix_products():
    assert boundaries((2, 2, 2, 2, 2, 2, 2, 19)) == (1, 2, 4, 8, 16, 32, 64, 128, 2432)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (((3, 2), 2, 0, 2), "2 processes: the fan-ins [3, 2] allow 1, 3, 6"),
        (((2, 2, 2), 3, 0, 3), "3 processes: the fan-ins [2, 2, 2] allow 1, 2, 4, 8"),
        (((2, 2), 8, 0, 8), "8 processes: the fan-ins [2, 2] allow 1, 2, 4"),
        (((4, 2), 8, 0, 2), "2 processes on a node: the fan-ins [4, 2] allow 1, 4, 8"),
        (((2, 1), 1, 0, 1), "fan-ins [2, 1]: every fan-in must be 2 or more; an empty list is one"),
        (((2, 2), 2, 2, 2), "process 2 is not one of 2 processes"),
        (((2, 2), 2, 0, 4), "4 processes on a node, of 2 in all"),
    ],
)
def test_what_the_fan_ins_do_not_allow_is_refused(arguments, message):
    with pytest.raises(LayoutError) as caught:
        Layout(*arguments)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    ["left-fold", "stock-reduction", "wall-clock-seed", "fused-adamw", "restore-without=random"],
)
def test_a_fault_prints_as_it_is_written(text):
    assert str(parse_fault(text)) == text


def test_a_fault_names_the_stream_it_leaves_out():
    assert parse_fault("restore-without=random") == Fault("restore-without", "random")
    assert parse_fault("left-fold").argument is None


@pytest.mark.parametrize(
    "text", ["", "fused", "restore-without", "restore-without=", "left-fold=", "left-fold=x"]
)
def test_another_fault_is_refused_with_the_names(text):
    with pytest.raises(UsageError, match=r"use one of left-fold, .*, restore-without=STREAM"):
        parse_fault(text)


def test_layout_schedule_and_faults_import_without_torch():
    code = (
        "import sys; import bitstep.train.layout, bitstep.train.schedule, bitstep.faults; "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_with_whole_sums_a_process_has_consecutive_leaves_and_the_high_levels_cross():
    layout = Layout((2, 3, 5), processes=5, process=1, local_processes=5, whole_sums=True)
    assert layout.leaves() == (6, 7, 8, 9, 10, 11)
    assert (layout.own, layout.across) == ((2, 3), (5,))
    two_nodes = Layout((2, 2, 2), processes=4, process=3, local_processes=2, whole_sums=True)
    assert (two_nodes.own, two_nodes.within_node, two_nodes.across_nodes) == ((2,), (2,), (2,))
    assert two_nodes.leaves() == (6, 7)


def test_with_whole_sums_other_numbers_of_processes_are_allowed():
    with pytest.raises(
        LayoutError, match=r"2 processes: the fan-ins \[2, 3, 5\] allow 1, 5, 15, 30"
    ):
        Layout((2, 3, 5), processes=2, process=0, local_processes=2, whole_sums=True)


@pytest.mark.parametrize("whole_sums", [False, True])
def test_every_leaf_is_done_once(whole_sums):
    for world in (1, 2, 4, 8):
        layouts = [Layout((2, 2, 2), world, p, world, whole_sums) for p in range(world)]
        assert sorted(leaf for layout in layouts for leaf in layout.leaves()) == list(range(8))
