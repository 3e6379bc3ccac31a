"""The names that read no tensor work without torch."""

import subprocess
import sys

import pytest

NO_TORCH = """
import sys
{block}
from bitstep.fingerprint import Part, complete, merge, nbytes, root
import bitstep.fingerprint
whole = complete(merge([Part(3, 4), Part(5, 4)]), "float32", (2,))
assert root({{"w": whole}}) == 0x{root}, hex(root({{"w": whole}}))
{extra}
assert sys.modules.get("torch") is None and sys.modules.get("numba") is None, "torch is loaded"
"""


def run(block="", extra=""):
    code = NO_TORCH.format(block=block, extra=extra, root="c4051135b9c96bd0")
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)


def test_importing_the_package_loads_no_torch():
    assert run().stderr == ""


def test_this_check_can_fail():
    assert "torch is loaded" in run(extra="bitstep.fingerprint.fingerprint").stderr


def test_what_needs_no_torch_works_where_there_is_none():
    assert run(block="sys.modules.update(torch=None, numba=None)").stderr == ""


def test_an_unknown_name_is_an_attribute_error():
    import bitstep.fingerprint

    with pytest.raises(AttributeError, match="no attribute 'finger'"):
        bitstep.fingerprint.finger  # noqa: B018
