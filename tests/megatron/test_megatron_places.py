"""Logical places of Megatron's tensors: what is said, what is owned, what is counted, by fakes.

The real thing, over real processes, is in `test_megatron_layouts`.
"""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from bitstep.adapters.megatron.cuts import numbered
from bitstep.adapters.megatron.places import Places, total
from bitstep.errors import FingerprintError, UsageError
from bitstep.fingerprint.definition import sum_of
from bitstep.fingerprint.logical import contribution
from bitstep.records import Box


def shard(key, data, shape=None, offsets=None, axes=0, replica=(0, 0, 0), padded=False):
    """What Megatron calls a ShardedTensor."""
    shape = shape or tuple(data.shape)
    return SimpleNamespace(
        key=key,
        data=data,
        local_shape=tuple(data.shape),
        global_shape=shape,
        global_offset=offsets or (0,) * len(shape),
        prepend_axis_num=axes,
        replica_id=replica,
        allow_shape_mismatch=padded,
    )


def factory(key, data, build, replica=(0, 0, 0)):
    """What Megatron calls a ShardedTensorFactory."""
    return SimpleNamespace(
        key=key, data=data, build_fn=build, replica_id=replica, flattened_range=None
    )


class GPTModel(nn.Module):
    """A model that says what it is told to say, and of which tensors."""

    def __init__(self, say, **parameters):
        super().__init__()
        for name, value in parameters.items():
            self.register_parameter(name, nn.Parameter(value))
        self.say = say

    def sharded_state_dict(self, metadata):
        assert metadata == {"non_homogeneous_layers": True}
        return self.say(self)


class DistributedDataParallel(nn.Module):
    """Megatron's wrapper: one bucket of gradients, of which each rank owns an equal part."""

    def __init__(self, module, rank, ranks, padding=0, instance=0):
        super().__init__()
        self.module = module
        self.ddp_config = SimpleNamespace(
            use_distributed_optimizer=True, overlap_param_gather=False
        )
        self.inter_dist_opt_group = SimpleNamespace(rank=lambda: instance)
        index, at = {}, 0
        for parameter in module.parameters():
            index[parameter] = (at, at + parameter.numel(), 0)
            at += parameter.numel() + padding
        size = -(-at // ranks) * ranks
        data = torch.full((size,), 77.0)
        for parameter, (start, end, _) in index.items():
            parameter.main_grad = data[start:end].view(parameter.shape)
        self.buffers = [
            SimpleNamespace(
                data_parallel_group=SimpleNamespace(rank=lambda: rank, size=lambda: ranks),
                param_index_map=index,
                buckets=[SimpleNamespace(grad_data=data, offset=0)],
            )
        ]
        self.expert_parallel_buffers = []
        self.param_to_bucket_group = {}


def plain(**values):
    """A model whose parameters are whole, under their own names."""
    return GPTModel(lambda m: {n: shard(n, p) for n, p in m.named_parameters()}, **values)


def halves(key, tensor, replica, flattened_range):
    """A gated MLP on tensor-parallel rank 1 of 2: the gate, then what it multiplies."""
    rows, columns = tensor.shape
    gate, value = tensor.chunk(2)
    shape = (2 * rows, columns)
    return [
        shard(key, gate, shape, (rows // 2, 0), replica=replica),
        shard(key, value, shape, (rows + rows // 2, 0), replica=replica),
    ]


def test_a_key_gets_the_numbers_that_were_axes():
    assert numbered("decoder.layers.mlp.fc1.weight", (3,)) == "decoder.layers.3.mlp.fc1.weight"
    key = "decoder.layers.mlp.experts.experts.fc1.weight"
    assert numbered(key, (3, 5)) == "decoder.layers.3.mlp.experts.experts.5.fc1.weight"
    key = "decoder.layers.7.mlp.experts.experts.fc1.weight"
    assert numbered(key, (5,)) == "decoder.layers.7.mlp.experts.experts.5.fc1.weight"
    assert numbered("decoder.layers.7.mlp.shared_experts.fc1.weight", ()).count("7") == 1


def test_a_gated_weight_is_two_boxes_of_one_tensor():
    model = GPTModel(lambda m: {"w": factory("w", m.w, halves)}, w=torch.arange(12.0).view(4, 3))
    pieces = list(Places([model], None).parameters())
    assert [piece.place for piece in pieces] == [
        Box((8, 3), (2, 0), (2, 3)),
        Box((8, 3), (6, 0), (2, 3)),
    ]
    assert [piece.tensor.tolist() for piece in pieces] == [
        [[0, 1, 2], [3, 4, 5]],
        [[6, 7, 8], [9, 10, 11]],
    ]
    assert {piece.name for piece in pieces} == {"GPTModel.w"}


def test_a_piece_is_a_view_of_the_live_tensor():
    model = GPTModel(lambda m: {"w": factory("w", m.w, halves)}, w=torch.zeros(4, 3))
    places = Places([model], None)
    pieces, before = list(places.parameters()), total(places.parameters())
    model.w.data[3, 2] = 1.0
    assert pieces[1].tensor[1, 2] == 1.0
    assert total(places.parameters()) != before


def test_a_factory_that_copies_leaves_its_parameter_without_a_place():
    def transposed(key, tensor, replica, flattened_range):
        return shard(key, tensor.t().contiguous(), replica=replica)

    model = GPTModel(lambda m: {"w": factory("w", m.w, transposed)}, w=torch.ones(2, 3))
    places = Places([model], None)
    (piece,) = places.parameters()
    assert places.unplaced == ["GPTModel.w"]
    assert piece.place is None
    assert not piece.main


def test_a_parameter_that_is_not_named_has_no_place():
    model = GPTModel(lambda m: {}, w=torch.ones(2, 3))
    assert Places([model], None).unplaced == ["GPTModel.w"]


def test_where_the_key_is_another_name_the_tensor_goes_by_it():
    model = GPTModel(lambda m: {"out": shard("embedding.weight", m.out)}, out=torch.ones(2))
    (piece,) = Places([model], None).parameters()
    assert piece.name == "GPTModel.embedding.weight"


def test_rows_of_padding_are_in_no_piece():
    model = GPTModel(
        lambda m: {"w": shard("w", m.w, (8, 2), (4, 0), padded=True)}, w=torch.ones(4, 2)
    )
    (piece,) = Places([model], None, vocabulary=5).parameters()
    assert piece.place == Box((5, 2), (4, 0), (1, 2))
    assert list(Places([model], None, vocabulary=4).parameters()) == []
    (piece,) = Places([model], None).parameters()
    assert piece.place == Box((8, 2), (4, 0), (4, 2))


def test_a_vocabulary_that_the_embedding_cannot_hold_is_refused():
    model = GPTModel(lambda m: {"w": shard("w", m.w, padded=True)}, w=torch.ones(4, 2))
    with pytest.raises(UsageError) as caught:
        Places([model], None, vocabulary=5)
    assert str(caught.value) == (
        "the vocabulary is given as 5 tokens and w has 4 rows:"
        " give the number of tokens that the tokenizer has"
    )


def test_where_megatron_itself_fails_the_places_are_refused():
    def fails(model):
        raise AssertionError("dict_keys of a thousand words")

    with pytest.raises(FingerprintError, match=r"^Megatron does not say where tensors lie"):
        Places([GPTModel(fails, w=torch.ones(2))], None)


@pytest.mark.parametrize("replica", [(1, 0, 0), (0, 1, 0), (0, 0, 1)])
def test_a_copy_is_not_counted(replica):
    model = GPTModel(lambda m: {"w": shard("w", m.w, replica=replica)}, w=torch.ones(2))
    (piece,) = Places([model], None).parameters()
    assert not piece.main


@pytest.mark.parametrize(("replica", "counted"), [((0, 0, 1), True), ((0, 1, 0), False)])
def test_a_shard_is_counted_on_its_data_parallel_rank(replica, counted):
    model = GPTModel(lambda m: {"w": shard("w", m.w, replica=replica)}, w=torch.ones(6))
    (piece,) = Places([DistributedDataParallel(model, 1, 2)], None).gradients(reduced=True)
    assert piece.main is counted


def test_a_further_instance_of_a_distributed_optimizer_counts_nothing():
    chunk = DistributedDataParallel(plain(w=torch.ones(6)), 0, 2, instance=1)
    (piece,) = Places([chunk], None).gradients(reduced=True)
    assert not piece.main


def test_reduced_gradients_of_all_ranks_are_the_whole_and_no_padding():
    values = {"a": torch.randn(5, 3), "b": torch.randn(2, 3, 4), "c": torch.randn(7)}
    expected = sum(
        contribution(
            f"GPTModel.{n}", "grad", "float32", tuple(v.shape), sum_of(v.numpy().tobytes())
        )
        for n, v in values.items()
    )
    for ranks in (1, 2, 3, 4, 8):
        found = nbytes = 0
        for rank in range(ranks):
            chunk = DistributedDataParallel(plain(**values), rank, ranks, padding=3)
            own = slice_of(chunk, rank, ranks)
            for name, parameter in chunk.module.named_parameters():
                parameter.main_grad.copy_(values[name])
            stale = chunk.buffers[0].buckets[0].grad_data
            kept = stale[own].clone()
            stale.fill_(float("nan"))
            stale[own] = kept
            pieces = list(Places([chunk], None).gradients(reduced=True))
            found += total(pieces)
            nbytes += sum(piece.tensor.nbytes for piece in pieces if piece.main)
        assert found % 2**64 == expected % 2**64
        assert nbytes == sum(value.nbytes for value in values.values())


def slice_of(chunk, rank, ranks):
    size = chunk.buffers[0].buckets[0].grad_data.numel() // ranks
    return slice(rank * size, (rank + 1) * size)


def test_gradients_before_their_reduction_are_each_process_s_own():
    chunk = DistributedDataParallel(plain(w=torch.ones(6)), 1, 2)
    (piece,) = Places([chunk], None).gradients(reduced=False)
    assert piece.tensor.shape == (6,)
    assert not piece.main


def test_gradients_can_be_asked_of_some_parameters_and_where_no_collective_runs():
    chunk = DistributedDataParallel(plain(a=torch.ones(2), b=torch.ones(2)), 0, 1)
    busy = SimpleNamespace(grad_reduce_handle=object())
    chunk.param_to_bucket_group = {chunk.module.a: busy}
    places = Places([chunk], None)
    names = [piece.name for piece in places.gradients(reduced=False, only_idle=True)]
    assert names == ["GPTModel.b"]
    names = [piece.name for piece in places.gradients(reduced=True, of={chunk.module.a})]
    assert names == ["GPTModel.a"]


def test_without_a_wrapper_the_gradient_of_autograd_is_read():
    model = plain(w=torch.ones(2, 3))
    model.w.grad = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]).t()  # not contiguous
    (piece,) = Places([model], None).gradients(reduced=True)
    assert piece.tensor.tolist() == [[1, 3, 5], [2, 4, 6]]


def moments(value):
    return {"step": torch.tensor(1.0), "exp_avg": torch.full_like(value, 2.0, dtype=torch.float32)}


def test_what_float32_parameters_keep_goes_by_the_parameter():
    model = plain(w=torch.ones(2, 3))
    inner = SimpleNamespace(state={model.w: moments(model.w)}, param_groups=[{"params": [model.w]}])
    pieces = list(Places([model], SimpleNamespace(optimizer=inner)).moments())
    assert [(p.name, p.slot, tuple(p.tensor.shape), p.main) for p in pieces] == [
        ("GPTModel.w", "state.exp_avg", (2, 3), True),
        ("GPTModel.w", "state.step", (), True),
    ]


def test_a_16_bit_parameter_has_a_master():
    model = plain(w=torch.ones(2, 3, dtype=torch.bfloat16))
    master = model.w.detach().float()
    one = SimpleNamespace(
        optimizer=SimpleNamespace(state={master: moments(master)}),
        float16_groups=[[model.w]],
        fp32_from_float16_groups=[[master]],
        fp32_from_fp32_groups=[[]],
    )
    chained = SimpleNamespace(chained_optimizers=[one, SimpleNamespace(is_stub_optimizer=True)])
    slots = [piece.slot for piece in Places([model], chained).moments()]
    assert slots == ["state.master", "state.exp_avg", "state.step"]


def distributed(model, ranges, masters, instance=0):
    """A distributed optimizer that owns these elements, by name."""
    named = dict(model.named_parameters())
    half = [p for p in named.values() if p.dtype == torch.bfloat16]
    full = [p for p in named.values() if p.dtype == torch.float32]
    where = {named[name]: slice(*own) for name, own in ranges.items()}
    view = {p: p.detach().view(-1)[where[p]] for p in named.values()}
    master = {p: view[p].float() if masters else None for p in half}
    stepped = [*(view[p] for p in full), *(view[p] if not masters else master[p] for p in half)]
    state = {t: moments(t) for t in stepped}
    if not masters:
        for p in half:
            state[view[p]]["master_param"] = view[p].float()
    return SimpleNamespace(
        optimizer=SimpleNamespace(state=state),
        distributed_optimizer_instance_id=instance,
        model_float16_groups=[half],
        shard_float16_groups=[[view[p] for p in half]],
        shard_fp32_from_float16_groups=[[master[p] for p in half]],
        model_fp32_groups=[full],
        shard_fp32_groups=[[view[p] for p in full]],
        _get_model_param_range_map=lambda p: {
            "param": SimpleNamespace(start=where[p].start, end=where[p].stop)
        },
    )


@pytest.mark.parametrize("masters", [True, False])
def test_a_distributed_optimizer_keeps_a_range_of_each_parameter(masters):
    # In one group of two dtypes, which Megatron's own numbers mix up.
    model = plain(a=torch.ones(2, 3, dtype=torch.bfloat16), b=torch.arange(4.0))
    optimizer = distributed(model, {"a": (1, 6), "b": (0, 2)}, masters)
    pieces = list(Places([model], optimizer).moments())
    found = {(p.name, p.slot, p.place, tuple(p.tensor.shape), p.main) for p in pieces}
    boxes = [Box((2, 3), (0, 1), (1, 2)), Box((2, 3), (1, 0), (1, 3))]
    assert found == {
        *(("GPTModel.a", "state.master", box, box.sizes, True) for box in boxes),
        *(("GPTModel.a", "state.exp_avg", box, box.sizes, True) for box in boxes),
        ("GPTModel.a", "state.step", None, (), False),
        ("GPTModel.b", "state.exp_avg", Box((4,), (0,), (2,)), (2,), True),
        ("GPTModel.b", "state.step", None, (), True),
    }


def test_a_second_instance_of_the_optimizer_counts_nothing_it_keeps():
    model = plain(b=torch.arange(4.0))
    optimizer = distributed(model, {"b": (0, 4)}, True, instance=1)
    assert not any(piece.main for piece in Places([model], optimizer).moments())


def test_a_layer_wise_optimizer_counts_a_parameter_where_it_is_kept():
    # On data-parallel rank 1, which counts no parameter.
    model = GPTModel(lambda m: {"w": shard("w", m.w, replica=(0, 0, 1))}, w=torch.ones(2, 3))
    inner = SimpleNamespace(state={model.w: moments(model.w)}, param_groups=[{"params": [model.w]}])
    one = SimpleNamespace(optimizer=inner)
    chained = SimpleNamespace(chained_optimizers=[one], shard_params=None)
    assert [piece.main for piece in Places([model], chained).moments()] == [True, True]
    chained = SimpleNamespace(chained_optimizers=[one])
    assert [piece.main for piece in Places([model], chained).moments()] == [False, False]


def test_the_step_of_a_cut_parameter_is_counted_by_the_first_rank_alone():
    model = GPTModel(lambda m: {"w": shard("w", m.w, (4, 3), (2, 0))}, w=torch.ones(2, 3))
    inner = SimpleNamespace(state={model.w: moments(model.w)}, param_groups=[{"params": [model.w]}])
    pieces = Places([model], SimpleNamespace(optimizer=inner)).moments()
    assert {piece.slot: piece.main for piece in pieces} == {
        "state.step": False,
        "state.exp_avg": True,
    }


def test_the_total_is_that_of_the_definition():
    model = plain(w=torch.arange(6.0).view(2, 3))
    data = np.arange(6, dtype=np.float32).tobytes()
    expected = contribution("GPTModel.w", "param", "float32", (2, 3), sum_of(data))
    assert total(Places([model], None).parameters()) == expected


def test_a_buffer_is_read_where_it_is_now():
    model = plain(w=torch.ones(2))
    model.register_buffer("counts", torch.zeros(3), persistent=False)
    places = Places([model], None)
    model.counts = torch.ones(3)
    (piece,) = places.buffers()
    assert (piece.name, piece.tensor.tolist(), piece.main) == ("GPTModel.counts", [1, 1, 1], False)
