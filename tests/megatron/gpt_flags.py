"""The flags of the Megatron program: a layout, a size, where to save and from where to go on.

1. Names are short forms of Megatron's own; without any, one process trains a dense model.
2. What follows from them is added: the padded vocabulary and the global batch.

    python gpt_program.py --tp 2 --sequence-parallel --bf16
"""

import os
from pathlib import Path

TEXT = Path(__file__).resolve().parents[2] / "LICENSE"


def flags_of(parser):
    """The parsed command line, and what follows from it."""
    whole, switch = {"type": int}, {"action": "store_true"}
    parser.add_argument("--tp", **whole, default=1)
    parser.add_argument("--pp", **whole, default=1)
    parser.add_argument("--vpp", **whole, help="model chunks on each pipeline rank")
    parser.add_argument("--ep", **whole, default=1)
    parser.add_argument("--sequence-parallel", **switch)
    parser.add_argument("--distributed-optimizer", **switch)
    parser.add_argument("--overlap", **switch, help="gradient reduce and parameter gather")
    parser.add_argument("--bucket", **whole, help="parameters in a bucket of gradients")
    parser.add_argument("--bf16", **switch)
    parser.add_argument("--recompute", choices=("full", "selective"))

    parser.add_argument("--layers", **whole, default=2)
    parser.add_argument("--hidden", **whole, default=32)
    parser.add_argument("--heads", **whole, default=4)
    parser.add_argument("--query-groups", **whole)
    parser.add_argument("--gated", **switch, help="SwiGLU")
    parser.add_argument("--untie", **switch, help="an output layer of its own")
    parser.add_argument("--mtp", **whole, help="layers of multi-token prediction")
    parser.add_argument("--experts", **whole)
    parser.add_argument("--balance", default="aux_loss", help="kinds of loss, by commas")
    parser.add_argument("--z-loss", type=float)
    parser.add_argument("--expert-bias", **switch)
    parser.add_argument("--dispatcher", default="alltoall")
    parser.add_argument("--vocabulary", **whole, default=256)
    parser.add_argument("--make-vocabulary-divisible-by", **whole, default=128)

    parser.add_argument("--text", default=TEXT)
    parser.add_argument("--sequence", **whole, default=16)
    parser.add_argument("--micro-batch", **whole, default=2)
    parser.add_argument("--microbatches", **whole, default=2)
    parser.add_argument("--steps", **whole, default=6)
    parser.add_argument("--lr", type=float, default=1e-2)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--clip-grad", type=float, default=1.0)
    parser.add_argument("--count-zeros", **switch)
    parser.add_argument("--seed", **whole, default=1234)

    parser.add_argument("--save", metavar="DIR")
    parser.add_argument("--save-at", **whole, metavar="STEP")
    parser.add_argument("--load", metavar="DIR")
    parser.add_argument("--own-steps", **switch, help="mend what --load leaves of Adam's steps")
    parser.add_argument("--optimizer-sharding", default="fully_reshardable")
    flags = parser.parse_args()

    multiple = flags.make_vocabulary_divisible_by * flags.tp
    flags.padded_vocabulary = -(-flags.vocabulary // multiple) * multiple
    replicas = int(os.environ.get("WORLD_SIZE", "1")) // (flags.tp * flags.pp)
    flags.global_batch = flags.micro_batch * flags.microbatches * replicas
    return flags
