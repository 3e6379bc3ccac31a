"""The logical root of a stream: contributions add up, whatever the cut, and nothing cancels."""

import hashlib
import itertools
import subprocess
import sys

import numpy as np
import pytest

from bitstep.fingerprint.definition import sum_of
from bitstep.fingerprint.logical import contribution

WORDS = ("decoder.layers.3.mlp.linear_fc1.weight", "param", "float32", (2, 3))


def by_hand(name, slot, dtype, shape, total):
    """The definition, written out once more."""
    digest = hashlib.blake2b(digest_size=8, person=b"bitstep-logical")
    for word in (name, slot, dtype, ",".join(str(size) for size in shape)):
        digest.update(len(word.encode()).to_bytes(4, "little") + word.encode())
    return (int.from_bytes(digest.digest(), "little") | 1) * total % 2**64


@pytest.mark.parametrize("total", [0, 1, 12345678901234567890, 2**64 - 1])
def test_a_contribution_is_an_odd_factor_of_the_words_times_the_sum(total):
    assert contribution(*WORDS, total) == by_hand(*WORDS, total)


def test_the_value_of_a_known_tensor_is_this():
    values = np.arange(6, dtype=np.float32)
    assert f"{contribution(*WORDS, sum_of(values.view(np.uint8))):016x}" == "50cce4fd5c600000"


def test_contributions_of_parts_add_up_to_that_of_their_tensor():
    values = np.arange(6, dtype=np.float32).view(np.uint8)
    cuts = [0, 3, 8, 17, 24]
    parts = [contribution(*WORDS, sum_of(values[a:b], a)) for a, b in itertools.pairwise(cuts)]
    assert sum(parts) % 2**64 == contribution(*WORDS, sum_of(values))


@pytest.mark.parametrize(
    "other",
    [
        ("decoder.layers.4.mlp.linear_fc1.weight", "param", "float32", (2, 3)),
        ("decoder.layers.3.mlp.linear_fc1.weight", "grad", "float32", (2, 3)),
        ("decoder.layers.3.mlp.linear_fc1.weight", "param", "int32", (2, 3)),
        ("decoder.layers.3.mlp.linear_fc1.weight", "param", "float32", (3, 2)),
        ("decoder.layers.3.mlp.linear_fc1.weight", "param", "float32", (6,)),
    ],
)
def test_equal_bits_under_another_name_slot_dtype_or_shape_contribute_something_else(other):
    assert contribution(*other, 1) != contribution(*WORDS, 1)


def test_words_that_run_into_each_other_are_told_apart():
    assert contribution("ab", "c", "float32", (1,), 1) != contribution(
        "a", "bc", "float32", (1,), 1
    )


def test_every_factor_is_odd():
    assert all(contribution(f"w{i}", "param", "float32", (1,), 1) % 2 for i in range(100))


def test_no_other_sum_of_one_tensor_contributes_the_same():
    # An odd factor has an inverse modulo 2^64, which takes every contribution back to its sum.
    inverse = pow(contribution(*WORDS, 1), -1, 2**64)
    for total in (1, 2**63, 2**64 - 1, 0x123456789ABCDEF):
        assert contribution(*WORDS, total) * inverse % 2**64 == total


def test_reading_contributions_needs_no_torch():
    code = "import sys, bitstep.fingerprint.logical; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
