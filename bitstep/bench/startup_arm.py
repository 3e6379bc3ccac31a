"""One process of `bitstep bench startup`: does each piece once, and times it.

    python -m bitstep.bench.startup_arm FOLDER RANK WORLD

It holds itself to the rules, joins the others over gloo, has the group measured, and writes the
manifest of a small model, as a recorded program does at its first step.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from bitstep.launch.parent import die_with_parent

PIECES: Final = ("rules", "summation", "collect", "write")
"""deterministic(), the measurement of one group, collecting the manifest, writing it."""

_seconds: dict[str, tuple[float, float]] = {}


@contextmanager
def _timed(piece: str) -> Iterator[None]:
    wall, cpu = time.perf_counter(), time.process_time()
    yield
    before = _seconds.get(piece, (0.0, 0.0))
    _seconds[piece] = (
        before[0] + time.perf_counter() - wall,
        before[1] + time.process_time() - cpu,
    )


def main(folder: Path, rank: int, world: int) -> None:
    """Do every piece, in this process; rank 0 leaves FOLDER/seconds.json."""
    die_with_parent()
    from bitstep.contract.enforce import Enforced

    enforced = Enforced(threads=1)
    with _timed("rules"):
        enforced.variables()
    import torch
    import torch._inductor.config  # setting determinism imports it
    import torch.distributed as dist

    import bitstep.contract.summation_measure  # noqa: F401
    from bitstep.contract.groups import measure_group
    from bitstep.contract.manifest import append_attempt
    from bitstep.observe.manifest import collected

    with _timed("rules"):
        enforced.settings()
    store = dist.FileStore(str(folder / "store"), world)  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
    dist.barrier()
    with _timed("summation"):
        measure_group(dist.group.WORLD)
    model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(24)))
    with _timed("collect"):
        manifest = collected(world, roots=[("Sequential", model)])
    if rank == 0:
        with _timed("write"):
            append_attempt(folder, manifest, None)
        (folder / "seconds.json").write_text(json.dumps(_seconds))
    dist.barrier()
    enforced.undo()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
