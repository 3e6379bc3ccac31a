"""Put the stand-in for torch.cuda into a script that nobody edits: Python runs this as it starts.

1. A finder waits for `import torch`; once torch is imported, `standin.install()` runs.
2. It stands behind the finders that are there, so that a recorder which waits for torch as well
   attaches to the torch that has the stand-in.
3. The sitecustomize that this one hides runs as it would have.

    PYTHONPATH=tests/megatron/bootstrap torchrun --nproc-per-node 2 pretrain_gpt.py ...
"""

import sys
from importlib.machinery import PathFinder
from pathlib import Path

HERE = Path(__file__).resolve().parent


class WaitForTorch:
    """Stands before Python's own path finder until torch has been imported."""

    def find_spec(self, name, path=None, target=None):
        if name != "torch":
            return None
        spec = PathFinder.find_spec(name, path)
        if spec is not None:
            execute = spec.loader.exec_module

            def execute_and_install(module):
                execute(module)
                sys.meta_path.remove(self)
                install()

            spec.loader.exec_module = execute_and_install
        return spec


def install():
    sys.path.insert(0, str(HERE.parent))
    try:
        import standin
    finally:
        sys.path.remove(str(HERE.parent))
    standin.install()


def run_hidden():
    """Import the next sitecustomize on the path, if there is one."""
    sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != HERE]
    ours = sys.modules.pop("sitecustomize", None)
    try:
        __import__("sitecustomize")
    except ModuleNotFoundError as error:
        if error.name != "sitecustomize":
            raise
    finally:
        if ours is not None:
            sys.modules.setdefault("sitecustomize", ours)


sys.meta_path.insert(sys.meta_path.index(PathFinder), WaitForTorch())
run_hidden()
