"""Examine a program from inside: its streams, generators, loaders and saves. Not a recorder.

A recorder changes nothing; an examined program is run for what changes when it is changed: its
workers, its start-up entropy, one stream of its state. So its runs are thrown away.

1. `order` is what the environment asks for; `bootstrap/` has the process do it.
2. `walk` finds what is reachable from modules, optimizers and the program's variables, `inventory`
   makes streams of it, `leaves` digests them.
3. `loaders`, `draws` and `saves` listen to DataLoaders, generators and checkpoints.
4. `process` counts steps, forks where a stream is to be perturbed, writes one file, and ends it.

>>> Order(folder=Path("out"), steps=2).to_environment({})["BITSTEP_EXAMINE"][:9]
'{"folder"'
"""

from bitstep.observe.examine.order import Order

__all__ = ["Order"]
