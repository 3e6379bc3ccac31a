"""The model: a hybrid of Mamba-2, attention, experts and MLP blocks, in the order of a pattern.

Read it in this order: `config`, `hybrid` (the whole model and its losses), `block` (the residual
step), then the mixers `mamba` (with `scan`), `attention`, `experts` (with `router`) and `mlp`;
`mtp` predicts further tokens; `initial` draws the parameters by name.

Bits depend on the inputs, the parameters, the `Draw` and the number of threads, on nothing else.
"""
