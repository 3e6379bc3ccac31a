"""Record programs twice, unedited, and compare: equal runs must be found equal, every time.

    python tests/programs/pairs.py OUT.jsonl 20 [program ...]

One line is appended per pair; a run that was stopped goes on where it was. Each line says what
`bitstep diff` said, and how many operations the recording has against those that PyTorch's profiler
counted in a third, bare run.
"""

import json
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock

HERE = Path(__file__).parent
BIN = Path(sys.executable).parent
ENGINE = [BIN / "bitstep", "pretrain", "nano", "-o", "run", "--processes", "2",
          "--set", "run.steps=2", "--set", "schedule.warmup=1"]  # fmt: skip
TORCHRUN = [BIN / "torchrun", "--nproc-per-node", "2"]
PROGRAMS = {
    "plain": [sys.executable, HERE / "plain.py", "3"],
    "ddp": [*TORCHRUN, HERE / "ddp.py", "3"],
    "fsdp": [*TORCHRUN, HERE / "fsdp.py", "3"],
    "engine": ENGINE,
    "trainer": [sys.executable, HERE / "trainer.py", "3"],
    "light": [sys.executable, HERE / "light.py", "3"],
    "compiled": [sys.executable, HERE / "compiled.py", "3"],
}
_lock = Lock()


def run(command, folder, timeout=300):
    folder.mkdir(parents=True, exist_ok=True)
    words = [str(word) for word in command]
    return subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=timeout)


def operations(run_folder):
    """Operation -> calls, over all ranks, of the rows of a recording."""
    import pyarrow.compute as pc

    from bitstep.trace import read_trace

    found = Counter()
    for attempt in sorted(run_folder.glob("attempt-*")):
        table = read_trace(attempt).table()
        table = table.filter(pc.not_equal(table["op"].cast("string"), ""))
        keys = ["process", "step", "phase", "pass", "microbatch", "module", "op", "occurrence"]
        calls = table.group_by(keys).aggregate([])
        for op in calls["op"].to_pylist():
            space, _, name = op.partition(".")
            found[f"{space}::{name.split('.')[0]}"] += 1
    return found


def profiled(program, folder, seen):
    """What the profiler counted in a bare run: found and missed operations."""
    command = PROGRAMS[program]
    at = next((i for i, word in enumerate(command) if str(word).endswith(".py")), None)
    if at is None:  # Our engine starts its own processes; the recording's own count stands alone.
        return None
    (folder / "seen.json").write_text(json.dumps(sorted(seen)))
    words = [HERE / "profiled.py", folder / "counts", folder / "seen.json"]
    ended = run([*command[:at], *words, *command[at:]], folder / "bare")
    if ended.returncode:
        return {"failed": ended.stderr[-500:]}
    found, missed = Counter(), Counter()
    for file in folder.glob("counts.*"):
        said = json.loads(file.read_text())
        found.update(said["found"])
        missed.update(said["missed"])
    return {"found": sum(found.values()), "missed": sum(missed.values()),
            "missed_names": dict(missed.most_common(12))}  # fmt: skip


def pair(program, number):
    folder = Path(tempfile.mkdtemp(prefix="pair-"))
    try:
        recorded = []
        for arm in ("a", "b"):
            words = [BIN / "bitstep", "record", "-o", folder / arm, "--", *PROGRAMS[program]]
            ended = run(words, folder / f"work-{arm}")
            recorded.append({"exit": ended.returncode, "line": ended.stderr.strip()[-200:]})
        diff = run([BIN / "bitstep", "diff", folder / "a", folder / "b"], folder)
        seen = operations(folder / "a")
        counted = profiled(program, folder, seen) if number % 5 == 0 else None
        return {"program": program, "number": number, "recorded": recorded,
                "diff_exit": diff.returncode, "diff": diff.stdout[:1500] + diff.stderr[:500],
                "ops": sum(seen.values()), "profiler": counted}  # fmt: skip
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main(out, pairs, *programs):
    out = Path(out)
    done = set()
    if out.exists():
        done = {(x["program"], x["number"]) for x in map(json.loads, out.read_text().splitlines())}
    todo = [(p, n) for n in range(int(pairs)) for p in programs or PROGRAMS if (p, n) not in done]

    def one(job):
        found = pair(*job)
        with _lock, out.open("a") as file:
            file.write(json.dumps(found) + "\n")
        print(found["program"], found["number"], found["diff_exit"], found["ops"],
              found["diff"].splitlines()[0][:90] if found["diff"] else "", flush=True)  # fmt: skip

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(one, todo))


if __name__ == "__main__":
    main(*sys.argv[1:])
