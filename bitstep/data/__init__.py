"""Training data: a folder of files, and an order that is a pure function of (seed, epoch, index).

`corpus` packs the folder into one stream of byte tokens a split, `permutation` is the order, and
`loader` cuts batches at a position. Import the modules by name: `loader` needs torch, the others
do not.
"""
