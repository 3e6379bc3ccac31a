"""Examine a program that has never heard of us: Python runs this file as it starts.

1. Python's generator starts from the order's entropy, so that two runs differ in it or do not.
2. Finders wait for `numpy.random`, whose start is set likewise, and for `torch`, behind which the
   process is examined.
3. The sitecustomize that this one hides runs as it would have.

    PYTHONPATH=.../examine/bootstrap BITSTEP_EXAMINE='{"folder": ...}' python train.py
"""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

HERE = os.path.dirname(os.path.abspath(__file__))
HOME = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(HERE))))


class Behind:
    """A finder that calls `then` with a module once it is imported whole."""

    def __init__(self, awaited: str, then: "Callable[[Any], None]") -> None:
        self._awaited = awaited
        self._then = then

    def find_spec(self, name: str, path: "Any" = None, target: "Any" = None) -> "Any":
        """The spec of the module that is awaited; None for any other name."""
        if name != self._awaited:
            return None
        for finder in sys.meta_path[sys.meta_path.index(self) + 1 :]:
            find = getattr(finder, "find_spec", None)
            spec = find(name, path, target) if find else None
            if spec is not None:
                self._follow(spec.loader)
                return spec
        return None

    def _follow(self, loader: "Any") -> None:
        execute = loader.exec_module

        def execute_and_tell(module: "Any") -> None:
            vars(loader).pop("exec_module", None)
            execute(module)
            if self in sys.meta_path:
                sys.meta_path.remove(self)
                self._then(module)

        loader.exec_module = execute_and_tell


def begin(entropy: int) -> None:
    """Set where Python's generators start, and wait for the others."""
    import random

    random.seed(entropy)
    sys.meta_path.insert(0, Behind("numpy.random", lambda numpy: _ours().numpy_came(numpy)))
    sys.meta_path.insert(0, Behind("torch", lambda torch: _ours().torch_came()))


def _ours() -> "Any":
    try:
        import bitstep.observe.examine.begin as found
    except ModuleNotFoundError:
        sys.path.append(HOME)
        import bitstep.observe.examine.begin as found
    return found


def run_hidden() -> None:
    """Run the sitecustomize that Python would have found without this folder, if there is one."""
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != HERE]
    ours = sys.modules.pop("sitecustomize", None)
    try:
        import sitecustomize  # type: ignore[import-not-found]  # noqa: F401
    except ImportError as error:
        if getattr(error, "name", None) != "sitecustomize":
            raise
    finally:
        if ours is not None:
            sys.modules.setdefault("sitecustomize", ours)


if os.environ.get("BITSTEP_EXAMINE"):
    import json

    begin(json.loads(os.environ["BITSTEP_EXAMINE"])["entropy"])
run_hidden()
