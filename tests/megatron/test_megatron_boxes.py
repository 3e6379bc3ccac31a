"""Flat ranges as boxes: every range of every small shape, against NumPy."""

import itertools
import math

import numpy as np
import pytest

from bitstep.adapters.megatron.boxes import boxes_of, clipped
from bitstep.fingerprint.places import whole
from bitstep.records import Box

SHAPES = [
    shape
    for dims in range(5)
    for shape in itertools.product((1, 2, 3), repeat=dims)
    if math.prod(shape) <= 24
]


def elements(box):
    """The numbers of a box's elements in the whole tensor, in row-major order of the box."""
    numbers = np.arange(math.prod(box.shape)).reshape(box.shape)
    at = tuple(slice(o, o + s) for o, s in zip(box.offsets, box.sizes, strict=True))
    return numbers[at].reshape(-1).tolist()


@pytest.mark.parametrize("shape", SHAPES)
def test_the_boxes_of_every_range_hold_its_elements_in_order(shape):
    size = math.prod(shape)
    for start, end in itertools.combinations_with_replacement(range(size + 1), 2):
        boxes = list(boxes_of(start, end, whole(shape)))
        assert list(itertools.chain(*map(elements, boxes))) == list(range(start, end))
        assert len(boxes) <= max(1, 2 * len(shape) - 1)
        assert all(math.prod(box.sizes) for box in boxes)


@pytest.mark.parametrize("shape", [(3,), (2, 3), (2, 2, 3)])
def test_a_range_of_a_box_lies_where_the_elements_of_the_box_do(shape):
    logical = tuple(size + 2 for size in shape)
    for offsets in itertools.product((0, 1, 2), repeat=len(shape)):
        place = Box(logical, offsets, shape)
        held = elements(place)
        for start, end in itertools.combinations_with_replacement(range(len(held) + 1), 2):
            found = itertools.chain(*map(elements, boxes_of(start, end, place)))
            assert list(found) == held[start:end]


def test_a_tensor_with_nothing_in_it_has_no_box():
    assert list(boxes_of(0, 0, whole((0, 3)))) == []


def test_the_number_of_a_tensor_without_dimensions_is_one_box():
    assert list(boxes_of(0, 1, whole(()))) == [Box((), (), ())]


@pytest.mark.parametrize(
    ("offset", "kept"),
    [
        (0, Box((10, 2), (0, 0), (4, 2))),
        (8, Box((10, 2), (8, 0), (2, 2))),
        (10, None),
        (12, None),
    ],
)
def test_rows_of_padding_are_cut_off_the_end_of_a_box(offset, kept):
    assert clipped(Box((16, 2), (offset, 0), (4, 2)), 10) == kept
