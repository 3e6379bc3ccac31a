"""The random states of this process, each under the name of its stream.

Reading a state draws no number: the generators hand out a copy.

>>> sorted(random_states())[:2]
['numpy', 'python']
"""

from __future__ import annotations

import random
import struct
import sys
from typing import Any

import torch

from bitstep.fingerprint import fingerprint
from bitstep.fingerprint.cpu import sum_of_bytes
from bitstep.records import Fingerprint


def random_states() -> dict[str, Fingerprint]:
    """The state of every process-wide generator that this program has."""
    states = {"python": _python(), "torch": fingerprint(torch.default_generator.get_state())}
    numpy = sys.modules.get("numpy.random")
    if numpy is not None:
        states["numpy"] = _numpy(numpy)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        for device, generator in enumerate(torch.cuda.default_generators):
            states[f"cuda:{device}"] = fingerprint(generator.get_state())
    return states


def state_of(generator: Any) -> Fingerprint:
    """The state of the generator that an op draws from; None: the default one of the host."""
    return fingerprint((generator or torch.default_generator).get_state())


_of_python: tuple[Any, Fingerprint] = (), Fingerprint(0, "", ())
"""The last state of Python's generator: most programs never draw from it, and its 625 numbers are
slow to pack."""


def _python() -> Fingerprint:
    global _of_python
    state = random.getstate()
    if state != _of_python[0]:
        version, words, gauss = state
        raw = struct.pack(f"<{len(words)}Q", *words) + repr((version, gauss)).encode()
        _of_python = state, Fingerprint(sum_of_bytes(raw), "uint8", (len(raw),))
    return _of_python[1]


def _numpy(numpy: Any) -> Fingerprint:
    kind, keys, position, has_gauss, gauss = numpy.get_state(legacy=True)
    raw = keys.tobytes() + repr((kind, position, has_gauss, gauss)).encode()
    return Fingerprint(sum_of_bytes(raw), "uint8", (len(raw),))
