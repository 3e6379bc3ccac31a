"""Where in the program something happens, for a person: never compared between runs.

>>> program_line()  # doctest: +SKIP
'train.py:31'
"""

from __future__ import annotations

import os
import sys

import torch

_HERE = os.path.dirname(os.path.abspath(__file__))


def program_line() -> str:
    """FILE:LINE of the program that runs: the innermost frame outside of torch and of us."""
    frame = sys._getframe(1)
    torch_folder = os.path.dirname(torch.__file__)
    best = "?"
    inner = ""
    while frame is not None:
        name = frame.f_code.co_filename
        if name.startswith(torch_folder) and "/utils/data/" in name and not inner:
            inner = f" in {frame.f_code.co_qualname}"
        if not name.startswith((torch_folder, _HERE, "<")):
            best = f"{os.path.basename(name)}:{frame.f_lineno}"
            break
        frame = frame.f_back  # type: ignore[assignment]
    return best + inner
