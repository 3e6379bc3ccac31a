"""Training data: a folder of files or an indexed dataset, and an order that is a pure function of
(seed, epoch, index).

`corpus` packs a folder into one stream of byte tokens a split, `indexed_corpus` takes the streams
of a dataset that `build` or Megatron wrote, `permutation` is the order, and `loader` cuts batches
at a position. `packing` is the order of Megatron. Import the modules by name: `loader` needs
torch, the others do not.
"""
