"""What is prepared for a stream is used as long as it holds, and not a read longer."""

import gc
import weakref

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from bitstep.fingerprint import part
from bitstep.observe import layouts, snapshot
from bitstep.observe.layouts import Layouts
from bitstep.observe.names import Names
from bitstep.observe.optimizers import Optimizers
from bitstep.observe.program import Program
from bitstep.observe.reading import Reader
from bitstep.observe.snapshot import Held, Item
from bitstep.records import Box, FlatRange

STREAMS = ("parameters", "gradients", "moments", "buffers")


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4, bias=False)
        self.wide = nn.Parameter(torch.ones(2, 3, 4, 4).to(memory_format=torch.channels_last))
        self.narrow = nn.Parameter(torch.ones(5, dtype=torch.bfloat16))
        self.empty = nn.Parameter(torch.zeros(0, 4))
        self.register_buffer("mean", torch.zeros(3))
        self.lists = [torch.ones(2), {"far": torch.ones(3)}]

    def forward(self, x):
        return self.b(self.a(x)).sum() + self.wide.sum() + self.narrow.sum() + self.empty.sum()


class Fixture:
    """A program after some steps, and a reader that has read all of it twice."""

    def __init__(self):
        torch.manual_seed(0)
        self.net = Net()
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=0.1)
        names, optimizers = Names(), Optimizers()
        names.root(self.net)
        optimizers.add(self.optimizer)
        self.program = Program(names, optimizers)
        self.reader = Reader()
        for _ in range(2):
            self.step()
            self.read()

    def step(self):
        self.optimizer.zero_grad()
        self.net(torch.randn(3, 4)).backward()
        self.optimizer.step()

    def read(self):
        """Of each stream all that rows are made of."""
        return {name: said(self.reader.read(getattr(self.program, name)())) for name in STREAMS}

    def anew(self):
        """The same, without anything that is remembered."""
        found = {}
        for name in STREAMS:
            found[name] = said(Reader().read(list(getattr(self.program, name)())))
        return found


def said(reading):
    cells = reading.table.cells("", 0, lambda name: name)
    return reading.sums.tolist(), reading.table.heads.tolist(), cells, reading.root()


@pytest.fixture
def program():
    return Fixture()


@pytest.fixture
def one_by_one(monkeypatch):
    """How often tensors were digested one by one."""
    calls = []
    monkeypatch.setattr(
        snapshot, "read", lambda items, read=snapshot.read: calls.append(1) or read(items)
    )
    return calls


def test_a_prepared_stream_is_read_in_one_call_and_sees_new_bits(program, one_by_one):
    before = program.read()
    program.step()
    after = program.read()
    assert one_by_one == []
    assert after == program.anew()
    for name in ("parameters", "gradients", "moments"):
        assert after[name] != before[name]


def change_in_place(it):
    it.net.a.weight.data[0, 0] += 1


def change_by_numpy(it):
    it.net.a.weight.detach().numpy()[0, 0] = 7


def replace_by_equal_layout(it):
    it.net.a.weight = nn.Parameter(it.net.a.weight.detach() * 2)


def transpose(it):
    it.net.a.weight.data = it.net.a.weight.data.t()


def other_dtype(it):
    it.net.narrow.data = it.net.narrow.data.float()


def same_bytes_as_integers(it):
    it.net.mean.data = it.net.mean.data.view(torch.int32)


def other_shape_at_the_same_address(it):
    it.net.mean.data = it.net.mean.data.view(1, 3)


def resize(it):
    it.net.mean.resize_(1)


def grow(it):
    it.net.mean.resize_(300)


def other_place_in_its_storage(it):
    storage = torch.arange(20.0)
    it.net.mean.data = storage[:3]
    it.read()
    it.net.mean.data = storage[9:12]


def strided(it):
    it.net.mean.data = torch.arange(6.0)[::2]


def negative(it):
    it.net.mean.data = torch._neg_view(torch.arange(3.0))


def free(it):
    it.net.mean.untyped_storage().resize_(0)


def sparse(it):
    it.net.mean = torch.eye(3).to_sparse()


def none(it):
    it.net.mean = None


def add_parameter(it):
    it.net.more = nn.Parameter(torch.ones(2))


def add_group(it):
    it.net.more = nn.Parameter(torch.ones(2))
    it.optimizer.add_param_group({"params": [it.net.more]})


def foreign_parameter(it):
    it.optimizer.add_param_group({"params": [nn.Parameter(torch.ones(2))]})


def move_key(it):
    weight = it.net.a.weight
    del it.net.a.weight
    it.net.a.heavy = weight


def tie(it):
    it.net.b.weight = it.net.a.weight


def lose_gradient(it):
    it.net.a.bias.grad = None


def no_gradients(it):
    it.optimizer.zero_grad()


def reload_moments(it):
    state = it.optimizer.state_dict()
    state["state"][0] = dict(reversed(state["state"][0].items()))
    it.optimizer.load_state_dict(state)
    it.optimizer.state[it.net.a.weight]["exp_avg"] += 1


def more_moments(it):
    it.optimizer.state[it.net.a.weight]["extra"] = {"deep": [torch.ones(2)]}


def replace_attribute(it):
    it.net.lists[1]["far"] = torch.zeros(3)


def grow_attributes(it):
    it.net.lists.append(torch.zeros(4))


def name_attribute(it):
    it.net.bank = torch.zeros(4)


CHANGES = [
    change_in_place, change_by_numpy, replace_by_equal_layout, transpose, other_dtype,
    same_bytes_as_integers, other_shape_at_the_same_address, resize, grow,
    other_place_in_its_storage, strided, negative, free, sparse, none, add_parameter, add_group,
    foreign_parameter, move_key, tie, lose_gradient, no_gradients,
    reload_moments, more_moments, replace_attribute, grow_attributes, name_attribute,
]  # fmt: skip


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_change_is_seen_at_the_next_read(program, change):
    before = program.read()
    change(program)
    after = program.read()
    assert after != before
    assert after == program.anew()
    assert program.read() == after


def test_without_the_class_of_torch_everything_is_looked_at_each_time(monkeypatch, one_by_one):
    monkeypatch.setattr(layouts.torch._C._dynamo, "guards", None)
    program = Fixture()
    one_by_one.clear()
    assert program.read() == program.anew()
    assert len(one_by_one) == 2 * len(STREAMS)


def test_layouts_hold_no_tensor_and_neither_does_a_reader(program):
    kept = [weakref.ref(program.net.a.weight), weakref.ref(program.net.a.weight.grad)]
    program.net, program.optimizer, program.program = None, None, None
    gc.collect()
    assert [it() for it in kept] == [None, None]


def test_layouts_are_not_those_of_fewer_or_other_tensors():
    pair = [torch.ones(2, 3), torch.ones(4)]
    known = Layouts(pair)
    assert known.are_those_of([torch.zeros(2, 3), torch.zeros(4)])
    assert not known.are_those_of(pair[:1])
    assert not known.are_those_of(pair[::-1])
    assert not known.are_those_of([torch.ones(3, 2).t(), pair[1]])
    assert not known.are_those_of([pair[0].double(), pair[1]])


class Asked(TorchFunctionMode):
    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_function__(self, function, types, args=(), kwargs=None):
        self.names.append(getattr(function, "__name__", str(function)))
        return function(*args, **kwargs or {})


def test_a_function_mode_of_the_program_is_asked_about_no_tensor(program):
    with Asked() as asked:
        program.reader.read(program.program.moments())
    assert asked.names == []


def cut_up(buffer):
    """A stream of pieces of one flat buffer: boxes, a range of bytes, and a whole."""
    places = [
        Box((7, 5), (2, 0), (3, 5)), Box((6, 4, 3), (1, 1, 0), (2, 2, 3)), Box((9,), (4,), (5,)),
        FlatRange((7, 5), 12, 28), None,
    ]  # fmt: skip
    sizes = [(3, 5), (2, 2, 3), (5,), (7,), (2, 2)]

    def cut():
        at = 0
        for number, (place, size) in enumerate(zip(places, sizes, strict=True)):
            count = torch.Size(size).numel()
            yield 0, Item(f"w{number}", "param", buffer[at : at + count].view(size), place, True)
            at += count

    return Held("cut", [buffer], cut)


def test_pieces_of_a_buffer_equal_their_parts(one_by_one):
    reader, buffer = Reader(), torch.randn(43)
    reader.read(cut_up(buffer))
    buffer += 1
    moved = buffer.clone()
    for current in (buffer, moved):
        one_by_one.clear()
        found = reader.read(cut_up(current))
        assert one_by_one == []
        expected = [
            part(item.tensor, item.place or Box((2, 2), (0, 0), (2, 2))).sum
            for item in cut_up(current)
        ]
        assert found.sums.tolist() == expected
        logical = Reader().read(list(cut_up(current))).table.logical(found.sums)
        assert found.table.logical(found.sums) == logical != 0


def test_rows_of_one_name_make_one_root_whatever_their_order():
    a, b = torch.ones(2), torch.zeros(2)
    reader, roots = Reader(), set()
    for pair in ([a, b], [b, a], [a, b]):
        items = [Item("w", "param", it) for it in pair]
        held = Held("twice", pair, lambda items=items: enumerate(items))
        reading = reader.read(held)
        roots |= {reading.root(), snapshot.root_of(snapshot.read(items))}
    assert len(roots) == 1
