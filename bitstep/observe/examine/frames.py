"""The frames of the program's own code in this thread: not of a library, and not ours. No torch.

>>> where()
''
"""

from __future__ import annotations

import os
import sys
import sysconfig
from types import FrameType
from typing import Final

_PACKAGE: Final = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_LIBRARIES: Final = tuple(
    {
        os.path.realpath(path) + os.sep
        for name in ("stdlib", "platstdlib", "purelib", "platlib")
        if (path := sysconfig.get_path(name))
    }
    | {os.path.dirname(os.path.realpath(os.__file__)) + os.sep, _PACKAGE + os.sep}
)


def is_own(file: str) -> bool:
    """Whether code is the program's own."""
    return not file.startswith("<") and not os.path.realpath(file).startswith(_LIBRARIES)


def own_frames() -> list[FrameType]:
    """The frames of the program, the outermost first."""
    found = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if is_own(frame.f_code.co_filename):
            found.append(frame)
        frame = frame.f_back
    return found[::-1]


def where() -> str:
    """File and line of the program that runs now: "train.py:20"; "" outside of its code."""
    frames = own_frames()
    if not frames:
        return ""
    frame = frames[-1]
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"
