"""Attach to a program that has never heard of it: Python runs this file as it starts.

1. A finder waits for `import torch`; a Python that never imports torch pays for this file alone.
2. The sitecustomize that this one hides runs as it would have, and takes its place. This folder
   leaves `sys.path`; the processes that are started get it from PYTHONPATH again.
3. Once torch is imported whole, `bitstep.adapters` attaches the recorder. What goes wrong is one
   line on stderr, and the program goes on.
4. Where determinism was asked for, `bitstep.contract.inside` is called before torch is imported,
   and before the recorder behind it. There what goes wrong ends the program.

It runs in every Python that the program starts, whichever that is: hence old syntax, and nothing is
imported that is not there already.

    PYTHONPATH=.../bitstep/observe/bootstrap BITSTEP_RECORD='{"directory": ...}' python train.py
"""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

HERE = os.path.dirname(os.path.abspath(__file__))
PACKAGE = os.path.dirname(os.path.dirname(HERE))
OLDEST = (3, 11)
IS_RECORDED = bool(os.environ.get("BITSTEP_RECORD") or os.environ.get("BITSTEP_PROBE"))
IS_HELD = bool(os.environ.get("BITSTEP_DETERMINISTIC"))


class WaitForTorch:
    """Stands first among the finders until torch has been imported."""

    def find_spec(self, name: str, path: "Any" = None, target: "Any" = None) -> "Any":
        """The spec of torch, whose loader attaches in the end; None for any other name.

        It may be asked without an import: `importlib.util.find_spec("torch")` is a usual question.
        """
        if name != "torch":
            return None
        # Those behind us: one before us, another that waits for torch perhaps, may be asking us.
        for finder in sys.meta_path[sys.meta_path.index(self) + 1 :]:
            find = getattr(finder, "find_spec", None)
            spec = find(name, path, target) if find else None
            if spec is not None:
                self._follow(spec.loader)
                return spec
        return None

    def _follow(self, loader: "Any") -> None:
        execute = loader.exec_module

        def execute_and_attach(module: "Any") -> None:
            vars(loader).pop("exec_module", None)  # the loader is as it was
            hold("before")
            execute(module)
            # Only now: after an import that failed the next one is waited for.
            if self in sys.meta_path:
                sys.meta_path.remove(self)
                hold("after")
                if IS_RECORDED:
                    attach()

        try:
            loader.exec_module = execute_and_attach
        except AttributeError as error:
            complain(error)
            if IS_HELD:
                sys.exit(2)


def hold(moment: str) -> None:
    """Hold this process to the rules, "before" and "after" torch is imported, or end it."""
    if not IS_HELD:
        return
    try:
        check_python()
        find_bitstep()
        from bitstep.contract import inside
    except Exception as error:
        complain(error, "not deterministic")
        sys.exit(2)
    getattr(inside, moment)()


def attach() -> None:
    """Attach the recorder to this process, whose torch is imported."""
    try:
        check_python()
        find_bitstep()
        from bitstep.adapters import attach_here
    except Exception as error:
        complain(error)
    else:
        # Raises only if the user asked for it with --strict.
        attach_here()


def check_python() -> None:
    """Raises RuntimeError where this Python is too old for us."""
    if sys.version_info < OLDEST:
        raise RuntimeError(f"Python {sys.version_info[0]}.{sys.version_info[1]} is too old")


def find_bitstep() -> None:
    """Make `import bitstep` work where it is not installed, and leave `sys.path` alone."""
    from importlib.util import find_spec, module_from_spec, spec_from_file_location

    found = sys.modules.get("bitstep") or find_spec("bitstep")
    # The program's own goes before ours; a folder that only has that name is none.
    if getattr(found, "origin", None) or getattr(found, "__file__", None):
        return
    spec = spec_from_file_location("bitstep", os.path.join(PACKAGE, "__init__.py"))
    if spec is None or spec.loader is None:
        raise ImportError("no bitstep in " + PACKAGE)
    sys.modules["bitstep"] = module = module_from_spec(spec)
    spec.loader.exec_module(module)


def complain(error: BaseException, what: str = "not recording") -> None:
    """One line on stderr; nothing where that is gone."""
    words = " ".join(f"{type(error).__name__}: {error}".split())
    try:  # noqa: SIM105  # contextlib would be an import
        os.write(2, f"bitstep: {what}: {words}\n".encode("utf-8", "replace"))
    except OSError:
        pass


def run_hidden() -> None:
    """Run the sitecustomize that Python would have found without this folder, if there is one."""
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != HERE]
    ours = sys.modules.pop("sitecustomize", None)
    try:
        # The lock of this import is ours already, and may be taken again.
        __import__("sitecustomize")
    except ImportError as error:
        if getattr(error, "name", None) != "sitecustomize":
            raise
    finally:
        # The import that runs this file wants to find a module; of the user, if there is one.
        if ours is not None:
            sys.modules.setdefault("sitecustomize", ours)


if IS_RECORDED or IS_HELD:
    if "torch" in sys.modules:  # a .pth file was earlier
        hold("before")
        hold("after")
        if IS_RECORDED:
            attach()
    else:
        sys.meta_path.insert(0, WaitForTorch())
run_hidden()
