import pytest
import torch

from bitstep.faults.raw import Memory, digest, holds, local, raw_bytes


def test_a_flip_changes_one_bit_of_one_element_and_no_version():
    tensor = torch.arange(6.0).view(2, 3).t()
    version = tensor._version
    assert Memory.of(tensor).flip(element=1, bit=22) == ("00004040", "00000040")
    assert tensor.flatten().tolist() == [0.0, 2.0, 1.0, 4.0, 2.0, 5.0]
    assert tensor._version == version


def test_a_flip_of_what_is_freed_or_not_there_is_refused():
    tensor = torch.zeros(2, dtype=torch.bfloat16)
    memory = Memory.of(tensor)
    with pytest.raises(IndexError, match="no element 2"):
        memory.flip(element=2, bit=0)
    with pytest.raises(IndexError, match="no bit 16 in bfloat16"):
        memory.flip(element=0, bit=16)
    del tensor
    with pytest.raises(ValueError, match="freed"):
        memory.flip(element=0, bit=0)


def test_memory_out_of_reach_is_refused():
    with pytest.raises(ValueError, match="out of reach"):
        Memory.of(torch.zeros(2, device="meta"))


def test_a_byte_between_the_elements_of_a_view_is_not_held():
    base = torch.zeros(4, 6)
    left = base[:, :2]
    address = Memory.of(base).address
    assert holds(left, address(6))
    assert holds(left, address(7) + 3)
    assert not holds(left, address(2))
    assert not holds(left, address(23))
    assert not holds(base[1:], address(5))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
def test_raw_bytes_are_those_of_the_row_major_copy(dtype):
    tensor = torch.arange(24).view(4, 6).to(dtype)
    for view in (tensor, tensor.t(), tensor[1:, ::2], tensor[:1].expand(3, 6)):
        plain = view.contiguous().view(torch.uint8).numpy().tobytes()
        assert raw_bytes(view) == plain


def test_a_digest_depends_on_names_and_bytes():
    one, other = torch.zeros(2), torch.zeros(2)
    assert digest([("a", one)]) == digest([("a", other)]) != digest([("b", one)])
    Memory.of(other).flip(0, 31)  # -0.0 == 0.0, and is another value
    assert digest([("a", one)]) != digest([("a", other)])


def test_the_local_part_of_a_distributed_tensor_is_what_is_read():
    class Sharded(torch.Tensor):
        pass

    part = torch.ones(2)
    whole = torch.ones(4).as_subclass(Sharded)
    whole._local_tensor = part
    assert local(whole) is part
