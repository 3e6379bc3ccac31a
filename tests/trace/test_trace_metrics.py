"""A metric is its bits: exact both ways, and refused where rounding would be needed."""

from __future__ import annotations

import math
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bitstep.errors import TraceError
from bitstep.trace import metric_bits, metric_value


@given(st.integers(0, 2**32 - 1))
def test_every_float32_comes_back(bits: int) -> None:
    assert metric_bits(metric_value(bits, "float32"), "float32") == bits


@given(st.integers(0, 2**64 - 1))
def test_every_float64_and_int64_comes_back(bits: int) -> None:
    assert metric_bits(metric_value(bits, "float64"), "float64") == bits
    assert metric_bits(metric_value(bits, "int64"), "int64") == bits


@pytest.mark.parametrize(
    ("value", "dtype", "bits"),
    [
        (0.0, "float32", 0),
        (-0.0, "float32", 0x80000000),
        (-0.0, "float64", 0x8000000000000000),
        (1.5, "float32", 0x3FC00000),
        (math.inf, "float32", 0x7F800000),
        (2.0**-149, "float32", 1),
        (0.1, "float64", 0x3FB999999999999A),
        (-1, "int64", 2**64 - 1),
        (3, "float32", 0x40400000),
    ],
)
def test_known_bits(value: float, dtype: str, bits: int) -> None:
    assert metric_bits(value, dtype) == bits


@pytest.mark.parametrize("bits", [0x7FC00000, 0xFFC00001, 0x7F800001, 0x7FBFFFFF, 0xFF923456])
def test_nan_payloads_of_float32_are_kept(bits: int) -> None:
    """Quiet and signalling: a conversion by the processor would set the quiet bit."""
    value = metric_value(bits, "float32")
    assert math.isnan(value)
    assert metric_bits(value, "float32") == bits


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (0.1, "float32"),
        (1e300, "float32"),
        (2.0**-150, "float32"),
        (struct.unpack("<d", (0x7FF0000000000001).to_bytes(8, "little"))[0], "float32"),
        (1.0, "int64"),
        (2**63, "int64"),
        (1.0, "bfloat16"),
    ],
)
def test_a_value_that_the_dtype_cannot_hold_is_refused(value: float, dtype: str) -> None:
    with pytest.raises(TraceError, match=r"record it as float64|is not known"):
        metric_bits(value, dtype)


@pytest.mark.parametrize(
    ("bits", "dtype"), [(2**32, "float32"), (-1, "float64"), (2**64, "int64"), (1, "bfloat16")]
)
def test_bits_that_do_not_fit_are_refused(bits: int, dtype: str) -> None:
    with pytest.raises(TraceError, match=r"do not fit|is not known"):
        metric_value(bits, dtype)
