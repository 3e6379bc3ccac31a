"""The process of a survey that measures: started with an order, it writes a line for each case.

    python -m bitstep.investigate.survey.worker '{"device": "cpu", "whole": true, ...}'

1. The order names the cases, whether they are measured along every axis or only computed, and the
   file. The first line of that is about the machine.
2. A line is written as soon as it is known: where this process dies, its starter sees at which.
"""

from __future__ import annotations

import json
import sys
import warnings
from dataclasses import asdict
from pathlib import Path

from bitstep.launch.parent import die_with_parent


def main(order: str) -> None:
    """Carry out the order."""
    from bitstep.investigate.survey.cases import all_cases
    from bitstep.investigate.survey.machine import machine, versions
    from bitstep.investigate.survey.measure import measure, plain

    warnings.simplefilter("ignore")  # of torch, about what is a prototype
    asked = json.loads(order)
    cases, device = all_cases(), asked["device"]
    with Path(asked["output"]).open("a") as file:
        print(json.dumps([machine(device), versions()]), file=file, flush=True)
        for name in asked["cases"]:
            found = (measure if asked["whole"] else plain)(cases[name], device)
            print(json.dumps([name, asdict(found)]), file=file, flush=True)


if __name__ == "__main__":
    die_with_parent()
    main(sys.argv[1])
