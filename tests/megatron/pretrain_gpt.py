"""Megatron's own flags for the small program: what a document's launch line is run with.

torchrun --nproc-per-node 2 pretrain_gpt.py --tensor-model-parallel-size 2 --train-iters 4
"""

import runpy
import sys
from pathlib import Path

SHORT = {
    "--tensor-model-parallel-size": "--tp",
    "--pipeline-model-parallel-size": "--pp",
    "--use-distributed-optimizer": "--distributed-optimizer",
    "--train-iters": "--steps",
}

if __name__ == "__main__":
    folder = Path(__file__).resolve().parent
    sys.path.insert(0, str(folder))
    sys.argv[1:] = [SHORT.get(word, word) for word in sys.argv[1:]]
    runpy.run_path(str(folder / "gpt_program.py"), run_name="__main__")
