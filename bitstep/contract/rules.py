"""The rules, as data: what must be set to what before a run can have the same bits again.

1. `rule` says what a rule is; `rules_cpu`, `rules_gpu` and `rules_torch` hold them.
2. `enforce` holds a process to them, `launch` sets the variables before a program starts.
3. docs/contract.md shows them; a test compares the two.

>>> BY_NAME["NCCL_ALGO"].accepts
('Ring', 'CollnetDirect', 'CollnetChain', '^NVLS')
"""

from __future__ import annotations

from typing import Final

from bitstep.contract.rule import Rule
from bitstep.contract.rules_cpu import CPU
from bitstep.contract.rules_gpu import GPU
from bitstep.contract.rules_torch import SETTINGS

__all__ = ["BY_NAME", "RULES", "SETTINGS", "VARIABLES", "Rule"]

VARIABLES: Final[tuple[Rule, ...]] = (*CPU, *GPU)
RULES: Final[tuple[Rule, ...]] = (*VARIABLES, *SETTINGS)
BY_NAME: Final = {rule.name: rule for rule in RULES}
