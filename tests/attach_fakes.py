"""A recorder that is a few lines, and programs that are recorded, for tests of attaching alone.

`SITE` is the sitecustomize of a user: it says that it ran, and puts the small recorder in place of
`bitstep.observe`, so that the bootstrap starts it as it would start the real one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from bitstep.launch.record import environment
from bitstep.observe.options import RecordOptions

ROOT = Path(__file__).parents[1]

SITE = """
import os, sys, types
import bitstep

def note(word):
    if "NOTES" in os.environ:
        with open(os.environ["NOTES"], "a") as file:
            file.write(f"{os.getpid()} {word}\\n")

class Recorder:
    def __init__(self, options):
        import atexit, torch
        from torch.optim.optimizer import register_optimizer_step_post_hook
        self.options, self.trace, self.steps = options, None, 0
        self.is_off = False
        register_optimizer_step_post_hook(self.end_step)
        atexit.register(self.close)
        note("attached to " + " ".join(sys.argv[:1]))

    def end_step(self, *_):
        if self.is_off:
            return
        import torch.distributed as dist
        from bitstep.observe.attempt import claim
        from bitstep.records import Record, Site
        from bitstep.trace import TraceWriter
        if self.trace is None:
            is_one_of_many = dist.is_available() and dist.is_initialized()
            rank = dist.get_rank() if is_one_of_many else int(os.environ.get("RANK", "0"))
            world = dist.get_world_size() if is_one_of_many else 1
            self.trace = TraceWriter(claim(self.options.directory, rank, world), rank)
        site = Site(self.steps, 0, "optimizer", "root")
        self.trace.write([Record(self.steps, site, 7, "uint64")])
        self.trace.end_step(self.steps, 7)
        self.steps += 1

    def after_fork(self):
        # Of a parent that recorded, or of one that did not.
        self.is_off = self.trace is not None
        self.trace = None

    def engine(self):
        from bitstep.observe.undo import Undo
        return types.SimpleNamespace(undo=Undo(), gap=note)

    def close(self):
        if self.trace is not None:
            self.trace.close()

def start(options):
    if os.environ.get("FAIL_TO_START"):
        raise RuntimeError("no\\nroom")
    fake.recorder = Recorder(options)
    return fake.recorder

fake = types.ModuleType("bitstep.observe")
fake.__path__ = [os.path.join(os.path.dirname(bitstep.__file__), "observe")]
fake.start, fake.after_fork = start, lambda: fake.recorder.after_fork()
sys.modules["bitstep.observe"] = bitstep.observe = fake
note("sitecustomize of " + __name__ + " in " + os.path.basename(os.path.dirname(__file__)))
"""

TRAIN = """
import os, sys
import torch
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def train(steps=3):
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(4, 2)).sum().backward()
        optimizer.step()
"""


def user_folder(tmp_path: Path, **files: str) -> Path:
    """A folder with the user's sitecustomize and modules, to stand in PYTHONPATH."""
    folder = tmp_path / "user"
    folder.mkdir(exist_ok=True)
    for name, text in {"sitecustomize": SITE, **files}.items():
        (folder / f"{name}.py").write_text(text)
    return folder


def attached(
    tmp_path: Path, words: list[str], **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run Python with those words, the bootstrap in place, and nothing of `launch` about it."""
    base = {**os.environ, "PYTHONPATH": str(user_folder(tmp_path)), "OMP_NUM_THREADS": "1"}
    base = {**base, "NOTES": str(tmp_path / "notes"), **variables}
    options = RecordOptions(tmp_path / "run")
    return subprocess.run(
        [sys.executable, *words],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=environment(options, base),
        timeout=120,
    )


def notes(tmp_path: Path) -> list[str]:
    """What the processes said, without who said it."""
    file = tmp_path / "notes"
    lines = file.read_text().splitlines() if file.exists() else []
    return [line.partition(" ")[2] for line in lines]


def record(
    tmp_path: Path, *command: str, words: tuple[str, ...] = (), **variables: str
) -> subprocess.CompletedProcess[str]:
    """`bitstep record -o run WORDS -- COMMAND`, with the small recorder."""
    return subprocess.run(
        [sys.executable, "-m", "bitstep", "record", "-o", "run", *words, "--", *command],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=record_environment(tmp_path, **variables),
        timeout=240,
    )


def record_environment(tmp_path: Path, **variables: str) -> dict[str, str]:
    """What `bitstep record` is started with."""
    base = {name: value for name, value in os.environ.items() if name != "RANK"}
    base["PYTHONPATH"] = str(user_folder(tmp_path))
    base["OMP_NUM_THREADS"] = "1"
    return {**base, "NOTES": str(tmp_path / "notes"), **variables}


def recording(run: Path) -> dict[str, list[int]]:
    """Attempt/process to the steps that were recorded, of files that have their end marker."""
    from bitstep.trace.files import list_files
    from bitstep.trace.load import load_process

    found = {}
    for attempt in sorted(run.glob("attempt-*")):
        names, damage = list_files(attempt)
        assert damage == []
        for name in names:
            (index,) = load_process(attempt, [name])
            assert index.problem is None, index.problem
            found[f"{attempt.name[-1]}/{name.process}"] = index.steps["step"].tolist()
    return found


def asked(run: Path) -> dict[str, object]:
    """What `recording.json` says."""
    content: dict[str, object] = json.loads((run / "recording.json").read_text())
    return content
