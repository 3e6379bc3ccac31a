"""Operations whose bits may vary, as data; and those that were tried and never varied.

1. `CATALOG` has a row per operation, device and way to vary: `catalog_cpu`, measured by
   `bitstep survey`; `catalog_cuda`, of torch's own list; `catalog_libraries`, of what lies beside.
2. `look_up` finds the rows of an operation as traces name it. None: nobody has tried it.

Nothing here imports torch.

>>> look_up("aten.index_put_", "cpu")[0].varies
'run to run'
>>> look_up("mine.kernel", "cpu")
()
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Final, get_args

from bitstep.contract.catalog_cpu import CPU
from bitstep.contract.catalog_cuda import CUDA
from bitstep.contract.catalog_libraries import LIBRARIES
from bitstep.contract.catalog_row import CUBLAS, FLAG, MACHINE, ONE_KERNEL, THREADS, Row, Varies

__all__ = [
    "CATALOG",
    "CUBLAS",
    "FLAG",
    "MACHINE",
    "ONE_KERNEL",
    "THREADS",
    "Row",
    "Varies",
    "look_up",
]

CATALOG: Final[tuple[Row, ...]] = (*CPU, *CUDA, *LIBRARIES)
_ORDER: Final = get_args(Varies)


@lru_cache(maxsize=4096)
def look_up(op: str, device: str) -> tuple[Row, ...]:
    """The rows of an operation, the worst first; () when the catalog does not know it.

    Args:
        op: as in a trace: "aten.index_put_", "aten.add_.Tensor", "aten.mm[MXTensor]"; an overload,
            ".default" and the kind of a quantized tensor do not matter.
        device: "cpu", "cuda" or "cuda:1".

    An operation in place has the rows of the one that is not, and the other way round, where it
    has none of its own: both are one kernel.
    """
    packet = _packet(op)
    twin = packet[:-1] if packet.endswith("_") else f"{packet}_"
    kind = device.partition(":")[0]
    return _rows(packet, kind) or _rows(twin, kind)


def _packet(op: str) -> str:
    name = op.partition("[")[0].replace("::", ".")
    return ".".join(name.split(".")[:2])


def _rows(packet: str, device: str) -> tuple[Row, ...]:
    found = (
        row for row in CATALOG if row.device in (device, "any") and fnmatchcase(packet, row.op)
    )
    return tuple(sorted(found, key=lambda row: _ORDER.index(row.varies)))
