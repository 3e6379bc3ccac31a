"""The definition, its tables, and what can be said of every change."""

import json
from itertools import pairwise
from math import gcd
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bitstep.errors import FingerprintError
from bitstep.fingerprint import complete, definition, merge, nbytes, root
from bitstep.fingerprint.definition import k_table, sum_of
from bitstep.records import Fingerprint, Part

GOLDEN = json.loads(
    (Path(__file__).parents[1] / "golden" / "fingerprint.json").read_text(encoding="utf-8")
)
LANE = (1 << 32) - 1
tables = st.sampled_from([1, 2])


@pytest.mark.parametrize("case", GOLDEN["cases"], ids=lambda case: case["name"])
def test_golden_sums(case):
    data = bytes.fromhex(case["hex"]) * case["times"]
    for table in (1, 2):
        found = sum_of(data, case["start"], table)
        assert f"{found:016x}" == case[f"table_{table}"]


def test_golden_root():
    named = {
        case["name"]: Fingerprint(int(case["table_1"], 16), case["dtype"], tuple(case["shape"]))
        for case in GOLDEN["cases"]
        if case["start"] == 0
    }
    assert f"{root(named):016x}" == GOLDEN["root"]
    assert root(dict(reversed(named.items()))) == root(named)


@pytest.mark.parametrize("table", [1, 2])
def test_k_is_2048_odd_full_width_numbers_that_differ_up_to_sign_modulo_8192(table):
    k = k_table(table)
    assert len(k) == 2048
    assert bool(np.all(k & 0x80000001 == 0x80000001))
    assert len({min(int(x) % 8192, 8192 - int(x) % 8192) for x in k}) == 2048


@pytest.mark.parametrize("table", [1, 2])
def test_a_is_odd_and_not_affine(table):
    a = definition.a_factors(0, 5000, table)
    assert bool(np.all(a & np.uint64(1) == 1))
    assert len(set(a.tolist())) == 5000
    assert len(set(np.diff(a).tolist())) == 4999


def test_the_tables_share_nothing():
    assert not set(k_table(1).tolist()) & set(k_table(2).tolist())
    assert not set(definition.a_factors(0, 5000, 1).tolist()) & set(
        definition.a_factors(0, 5000, 2).tolist()
    )


def test_there_is_no_third_table():
    with pytest.raises(FingerprintError, match="no table 3: use 1 or 2"):
        sum_of(b"", table=3)


@given(
    lane=st.integers(0, 2047),
    block=st.integers(0, 2**40),
    old=st.integers(0, LANE),
    new=st.integers(0, LANE),
    table=tables,
)
def test_one_changed_lane_always_changes_the_sum(lane, block, old, new, table):
    start = 4 * (2048 * block + lane)
    sums = [sum_of(value.to_bytes(4, "little"), start, table) for value in (old, new)]
    assert (sums[0] == sums[1]) == (old == new)


@given(
    places=st.lists(st.integers(0, 2047), min_size=2, max_size=2, unique=True),
    difference=st.integers(1, LANE),
    sign=st.sampled_from([1, -1]),
    table=tables,
)
def test_two_equal_or_opposite_changes_in_a_block_never_cancel(places, difference, sign, table):
    k = k_table(table)
    i, j = (int(k[place]) for place in places)
    assert difference * (i + sign * j) % 2**64 != 0


def _missed_pairs(k0, k1):
    """Every pair of differences of an 8-byte element that a table misses, up to sign."""
    common = gcd(k0, k1)
    most = LANE * common // max(k0, k1)
    for m in range(1, most + 1):
        yield m * k1 // common, -m * k0 // common
    if common == 1:
        for d0 in range(2**64 * pow(k0, -1, k1) % k1, LANE + 1, k1):
            d1 = (2**64 - d0 * k0) // k1
            if d0 > 0 and 0 < d1 <= LANE:
                yield d0, d1


def test_an_8_byte_element_is_missed_as_rarely_as_the_document_says():
    counts = {}
    for table in (1, 2):
        k, other = ([int(x) for x in k_table(t)] for t in (table, 3 - table))
        counts[table] = []
        for i in range(0, 2048, 2):
            missed = list(_missed_pairs(k[i], k[i + 1]))
            assert all((d0 * k[i] + d1 * k[i + 1]) % 2**64 == 0 for d0, d1 in missed)
            assert all((d0 * other[i] + d1 * other[i + 1]) % 2**64 != 0 for d0, d1 in missed)
            counts[table].append(2 * len(missed))
    assert (min(counts[1]), max(counts[1]), round(sum(counts[1]) / 1024)) == (2, 6122, 16)
    assert (min(counts[2]), max(counts[2])) == (2, 2416)


def test_a_missed_8_byte_change_is_seen_by_the_second_table():
    k0, k1 = (int(x) for x in k_table(1)[:2])
    old, new = (0, k0), (k1, 0)
    words = [b"".join(half.to_bytes(4, "little") for half in value) for value in (old, new)]
    assert sum_of(words[0]) == sum_of(words[1])
    assert sum_of(words[0], table=2) != sum_of(words[1], table=2)


@settings(max_examples=50)
@given(
    data=st.binary(max_size=300),
    start=st.integers(0, 20000),
    cuts=st.lists(st.integers(0, 300), max_size=5),
    table=tables,
)
def test_runs_cut_at_any_byte_add_up(data, start, cuts, table):
    edges = sorted({0, len(data), *(min(cut, len(data)) for cut in cuts)})
    parts = [Part(sum_of(data[a:b], start + a, table), b - a) for a, b in pairwise(edges)]
    assert merge(reversed(parts)) == Part(sum_of(data, start, table), len(data))


def test_the_sum_is_linear_in_the_bytes():
    one, two = np.array([1, 2, 3, 250], np.uint8), np.array([9, 0, 4, 5], np.uint8)
    assert (sum_of(one) + sum_of(two)) % 2**64 == sum_of(one + two) != 0


def test_zero_bytes_behind_a_tensor_change_the_count_and_not_the_sum():
    assert sum_of(b"bits") == sum_of(b"bits\0")
    with pytest.raises(FingerprintError, match=r"hold 4 bytes and a uint8 .* \(5,\)"):
        complete(Part(sum_of(b"bits"), 4), "uint8", (5,))


def test_a_lost_and_a_doubled_part_are_errors():
    parts = [Part(7, 8), Part(9, 16)]
    assert complete(merge(parts), "float32", (2, 3)) == Fingerprint(16, "float32", (2, 3))
    with pytest.raises(FingerprintError, match=r"hold 16 bytes .* has 24: a part is missing"):
        complete(merge(parts[1:]), "float32", (2, 3))
    with pytest.raises(FingerprintError, match=r"hold 32 bytes .* has 24: a part was counted"):
        complete(merge([*parts, parts[0]]), "float32", (2, 3))


def test_no_parts_are_an_empty_part():
    assert merge([]) == Part(0, 0)
    assert complete(merge([]), "int8", (3, 0)) == Fingerprint(0, "int8", (3, 0))


def test_nbytes_of_every_kind_of_element():
    assert nbytes("float4_e2m1fn_x2", (3, 5)) == 15
    assert nbytes("bfloat16", ()) == 2
    assert nbytes("complex128", (2, 0)) == 0
    with pytest.raises(FingerprintError, match="'qint8' has no fingerprint"):
        nbytes("qint8", (1,))


BASE = Fingerprint(5, "float32", (2, 3))


@pytest.mark.parametrize(
    "other",
    [
        {"a": BASE._replace(sum=6)},
        {"a": BASE._replace(dtype="int32")},
        {"a": BASE._replace(shape=(3, 2))},
        {"a": BASE._replace(shape=(2, 3, 1))},
        {"b": BASE},
        {"a": BASE, "": BASE},
        {},
    ],
)
def test_the_root_sees_name_dtype_shape_sum_and_number(other):
    assert root(other) != root({"a": BASE})


def test_the_root_sees_two_exchanged_tensors():
    first, second = BASE, BASE._replace(sum=6)
    assert root({"a": first, "b": second}) != root({"a": second, "b": first})
