"""Checkpoints: exact, verified, atomic; written by any number of processes and read by any other.

    save(root_dir, 20, state, processes)      all processes, or none
    restore(checkpoint, state, processes)     checked before and after the load
    verify(checkpoint), show(checkpoint)      no model, no torch, no other process
    newest(root_dir), prune(root_dir, ...)    which to use, which to remove

`docs/checkpoint-format.md` has the format with a reason for each rule. Importing this room does
not load torch.
"""

from bitstep.checkpoint.keep import newest, prune, set_aside
from bitstep.checkpoint.restore import Restored, restore
from bitstep.checkpoint.save import POSITIONS, save
from bitstep.checkpoint.verify import Report, Row, show, verify

__all__ = [
    "POSITIONS",
    "Report",
    "Restored",
    "Row",
    "newest",
    "prune",
    "restore",
    "save",
    "set_aside",
    "show",
    "verify",
]
