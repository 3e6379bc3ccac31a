"""Arm a program that has never heard of us: Python runs this file as it starts.

1. A finder waits for `import torch`, and arms the process behind it.
2. The sitecustomize that this one hides runs as it would have: of the user, or of a recorder that
   came in the same way. This folder leaves `sys.path`; processes that are started get it from
   PYTHONPATH again.

    PYTHONPATH=.../bitstep/faults/bootstrap BITSTEP_FAULT="output step=3 op=aten.mm" python train.py
"""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

HERE = os.path.dirname(os.path.abspath(__file__))
HOME = os.path.dirname(os.path.dirname(os.path.dirname(HERE)))


class BehindTorch:
    """A finder that has the process armed once torch is imported whole."""

    def find_spec(self, name: str, path: "Any" = None, target: "Any" = None) -> "Any":
        """The spec of torch, whose loader arms in the end; None for any other name."""
        if name != "torch":
            return None
        # Those behind us only: another one like us asks us, and must not be asked by us.
        for finder in sys.meta_path[sys.meta_path.index(self) + 1 :]:
            find = getattr(finder, "find_spec", None)
            spec = find(name, path, target) if find else None
            if spec is not None:
                self._follow(spec.loader)
                return spec
        return None

    def _follow(self, loader: "Any") -> None:
        execute = loader.exec_module

        def execute_and_arm(module: "Any") -> None:
            loader.__dict__.pop("exec_module", None)
            execute(module)
            if self in sys.meta_path:
                sys.meta_path.remove(self)
                arm()

        loader.exec_module = execute_and_arm


def arm() -> None:
    """Arm this process; a fault that cannot be understood ends it."""
    try:
        import bitstep.faults
    except ModuleNotFoundError:
        sys.path.append(HOME)
        import bitstep.faults
    bitstep.faults.arm()


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


if os.environ.get("BITSTEP_FAULT"):
    sys.meta_path.insert(0, BehindTorch())
run_hidden()
