"""Show to a person what was recorded. Everything here returns text or plain data; none prints.

1. `log_text` is what `bitstep log RUN` prints.
2. `log_json` is the same as data, with every value beside its bits.

    text = log_text(run, last=20)
"""

from bitstep.report.terminal import log_json, log_text

__all__ = ["log_json", "log_text"]
