"""What an adapter of an engine tells the recorder, and that reading for it is not seen."""

import torch
from recording_fakes import data, recorded, small
from torch.utils._python_dispatch import TorchDispatchMode

from bitstep.fingerprint import fingerprint, part
from bitstep.fingerprint.logical import contribution
from bitstep.observe.program import Program
from bitstep.observe.snapshot import Item
from bitstep.records import Box


class Halves(Program):
    """A source that cuts each parameter in two, and counts both."""

    def parameters(self):
        for item in super().parameters():
            flat, full = item.tensor.detach().view(-1), item.tensor.numel()
            for start, end in ((0, full // 2), (full // 2, full)):
                place = Box((full,), (start,), (end - start,))
                yield Item(item.name, "param", flat[start:end], place, main=True)


class Counting(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.ops = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.ops.append(str(func))
        return func(*args, **kwargs or {})


def run(tmp_path, name, halves, **options):
    """The recording, the operations that a mode of the program saw, and the model."""
    torch.manual_seed(1)
    model, seen = small(), Counting()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def program(recorder):
        if halves:
            engine = recorder.engine()
            engine.events.layout = "halves"
            engine.use(Halves(engine.names, recorder._optimizers))
        for batch in list(data(2)):
            with seen:
                model(batch).sum().backward()
                optimizer.step()
                optimizer.zero_grad()

    return recorded(tmp_path / name, program, **options), seen.ops, model


def test_reading_cut_tensors_is_not_seen_by_a_mode_of_the_program(tmp_path):
    bare = run(tmp_path, "plain", halves=False, level="phase")[1]
    found, seen, _ = run(tmp_path, "cut", halves=True, level="phase")
    assert seen == bare
    assert found.gaps() == []


def test_pieces_have_their_places_and_add_up_to_the_logical_root(tmp_path):
    found, _, model = run(tmp_path, "cut", halves=True, level="phase")
    left = found.of(step=2, slot="param", occurrence=1)
    assert len(left) == 2 * len(list(model.parameters()))
    total = 0
    for parameter, name in zip(model.parameters(), dict.fromkeys(r.site.module for r in left)):  # noqa: B905
        flat = parameter.detach().view(-1)
        pieces = [row for row in left if row.site.module == name]
        half = len(flat) // 2
        for row, (start, end) in zip(pieces, ((0, half), (half, len(flat))), strict=True):
            place = Box((len(flat),), (start,), (end - start,))
            assert (row.place, row.digest) == (place, part(flat[start:end].clone(), place).sum)
        whole = fingerprint(flat).sum
        total += contribution(name, "param", "float32", (len(flat),), whole)
    [root] = found.of(step=2, slot="root.logical.params")
    assert root.digest == total % 2**64


def test_a_layout_stands_at_the_start_and_in_the_manifest(tmp_path):
    found, _, _ = run(tmp_path, "cut", halves=True, level="step")
    assert [row.site.op for row in found.of(step=0, slot="layout")] == ["halves"]
    assert '"layout.physical.engine": "halves"' in (tmp_path / "cut" / "manifest.json").read_text()


def test_without_an_engine_there_is_no_logical_root(tmp_path):
    found, _, _ = run(tmp_path, "plain", halves=False, level="phase")
    assert [row for row in found.of(step=2) if "logical" in row.site.slot] == []
