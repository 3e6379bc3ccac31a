"""Two recorded runs that differ in one thing: the manifest names it first, and says whether it can
change bits. The program and its recording are real; nothing else about the two runs differs."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bitstep.contract.classes import ALWAYS
from bitstep.contract.manifest import compare
from bitstep.contract.placement import newest

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

BITSTEP = [str(Path(sys.executable).parent / "bitstep")]

PROGRAM = """
import argparse, os
import torch, fakelib
import torch.distributed as dist
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--data", default="data.txt")
numbers = [float(word) for word in open(parser.parse_args().data).read().split()]
if "RANK" in os.environ:
    dist.init_process_group("gloo")
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 1))
if dist.is_initialized():
    model = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(2):
    loss = model(torch.tensor(numbers).view(-1, 8)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
if dist.is_initialized():
    dist.barrier()
    dist.destroy_process_group()
"""
HOST = """
import os, socket
if "FAKE_HOST" in os.environ:
    socket.gethostname = lambda: os.environ["FAKE_HOST"]
"""
SAME = {
    "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTHONHASHSEED": "1", "FAKE_HOST": "east",
    "ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2",
}  # fmt: skip


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    home = tmp_path_factory.mktemp("pairs")
    folder = home / "program"
    folder.mkdir()
    (folder / "tiny.py").write_text(PROGRAM)
    (folder / "data.txt").write_text(" ".join(map(str, range(16))))
    (folder / "other.txt").write_text(" ".join(map(str, range(1, 17))))
    for version in ("1.0", "2.0"):
        library = home / version
        (library / f"fakelib-{version}.dist-info").mkdir(parents=True)
        (library / "fakelib.py").write_text("scale = 1\n")
        (library / "sitecustomize.py").write_text(HOST)
    return folder


def environment(place, version="1.0", **changes):
    base = {k: v for k, v in os.environ.items() if not k.startswith(("OMP", "MKL", "PYTHON"))}
    return {**base, **SAME, "PYTHONPATH": str(place.parent / version), **changes}


def start(place, name, *words, **changes):
    words = words or ("--data", "data.txt")
    command = [*BITSTEP, "record", "-q", "-o", name, "--level", "step", "--"]
    return subprocess.Popen(
        [*command, sys.executable, "tiny.py", *words],
        cwd=place, env=environment(place, **changes), stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def ended(*processes):
    for process in processes:
        _, error = process.communicate(timeout=280)
        assert process.returncode == 0, error


@pytest.fixture(scope="module")
def base(place):
    ended(start(place, "base"))
    return place / "base"


def differing(a, b):
    """Key to whether it can change bits, of those that are worth a word."""
    found = compare(newest(a), newest(b))
    return {one.key: (one.class_, one.bits) for one in found if one.key not in ALWAYS}


def first_lines(place, *words):
    done = subprocess.run([*BITSTEP, *words], cwd=place, capture_output=True, text=True)
    assert done.stderr == ""
    return done.stdout.splitlines()


MUST_CAN = ("must match", "can change bits")
PAIRS = {
    "threads": (
        (), {"OMP_NUM_THREADS": "2", "MKL_NUM_THREADS": "2"},
        {"settings.threads.torch": MUST_CAN, "settings.threads.omp": MUST_CAN,
         "settings.threads.mkl": MUST_CAN,
         "environment.OMP_NUM_THREADS": ("may differ", "through another key"),
         "environment.MKL_NUM_THREADS": ("may differ", "through another key")},
        "can change bits: settings.threads.mkl: 1 in A, 2 in B (the order of summation",
    ),
    "instructions": (
        (), {"ATEN_CPU_CAPABILITY": "default"},
        {"environment.ATEN_CPU_CAPABILITY": MUST_CAN, "hardware.cpu.capability": MUST_CAN},
        "can change bits: environment.ATEN_CPU_CAPABILITY: avx2 in A, default in B (it chooses",
    ),
    "instructions-of-onednn": (
        (), {"ONEDNN_MAX_CPU_ISA": "SSE41"}, {"environment.ONEDNN_MAX_CPU_ISA": MUST_CAN},
        "can change bits: environment.ONEDNN_MAX_CPU_ISA: AVX2 in A, SSE41 in B (it limits",
    ),
    "hash-seed": (
        (), {"PYTHONHASHSEED": "2"}, {"environment.PYTHONHASHSEED": MUST_CAN},
        "can change bits: environment.PYTHONHASHSEED: 1 in A, 2 in B (sets are walked in another",
    ),
    "library": (
        (), {"version": "2.0"}, {"software.distributions.fakelib": MUST_CAN},
        "can change bits: software.distributions.fakelib: 1.0 in A, 2.0 in B (its code may",
    ),
    "data": (
        ("--data", "other.txt"), {},
        {"arguments.data": MUST_CAN, "data.named.data": MUST_CAN,
         "program.command": ("may differ", "through another key")},
        "can change bits: arguments.data: data.txt in A, other.txt in B (the program was told",
    ),
    "host": (
        (), {"FAKE_HOST": "west"}, {"program.host": ("may differ", "cannot change bits")},
        "cannot change bits: program.host: east in A, west in B (the hardware is compared, not its",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PAIRS)
def test_what_differs_is_named_first_and_said_to_change_bits_or_not(place, base, name):
    words, changes, wanted, first = PAIRS[name]
    ended(start(place, name, *words, **changes))
    assert differing(base, place / name) == wanted
    lines = first_lines(place, "diff", "base", name)
    assert lines[0].startswith(first)
    screen = first_lines(place, "manifest", "diff", "base", name)
    print("\n".join([f"$ bitstep manifest diff base {name}", *screen, "$ bitstep diff", *lines]))
    bits = first.partition(":")[0]
    assert screen[1].startswith(bits)
    assert len(screen) <= 24


def test_a_second_run_of_the_same_differs_in_nothing(place, base):
    ended(start(place, "again"))
    assert differing(base, place / "again") == {}
    assert first_lines(place, "manifest", "diff", "base", "again") == ["no key differs"]
    assert first_lines(place, "diff", "base", "again")[0].startswith("the same: ")


def launched(place, name, port, first, hosts):
    """Two ranks that are started one after the other, each by a launcher of its own."""
    processes = []
    for rank in (first, 1 - first):
        ranks = {"RANK": str(rank), "LOCAL_RANK": "0", "WORLD_SIZE": "2", "FAKE_HOST": hosts[rank]}
        where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        processes.append(start(place, name, **ranks, **where))
        time.sleep(3)  # ranks that start within a second count as started together
    ended(*processes)


def test_another_order_of_starts_cannot_change_bits(place, unused_port):
    for name, first in (("zero-first", 0), ("one-first", 1)):
        launched(place, name, unused_port, first, ("east", "east"))
    assert differing(place / "zero-first", place / "one-first") == {
        "layout.physical.started": ("may differ", "cannot change bits")
    }
    lines = first_lines(place, "diff", "zero-first", "one-first")
    print("\n".join(["$ bitstep diff zero-first one-first", *lines]))
    assert lines[0].startswith(
        "cannot change bits: layout.physical.started: 0, 1 in A, 1, 0 in B (ranks have numbers"
    )


def test_another_order_of_hosts_can_change_bits(place, unused_port):
    for name, hosts in (("spread", ("east", "west")), ("swapped", ("west", "east"))):
        launched(place, name, unused_port, 0, hosts)
    assert differing(place / "spread", place / "swapped") == {
        "layout.physical.hosts": ("may differ", "can change bits"),
        "program.host": ("may differ", "cannot change bits"),
    }
    lines = first_lines(place, "diff", "spread", "swapped")
    print("\n".join(["$ bitstep diff spread swapped", *lines]))
    assert lines[0].startswith(
        "can change bits: layout.physical.hosts: east: 0, west: 1 in A, west: 0, east: 1 in B (NCCL"
    )


@pytest.fixture
def unused_port():
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]
