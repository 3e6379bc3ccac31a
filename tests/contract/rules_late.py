"""A program in which every moment that reads a setting is over before anybody asks for the rules.

Its words: "late" sets every variable only then, "early" was started with all of them. It prints
what was said about each rule, and the error, as JSON.
"""

import json
import os
import sys

import torch
import torch._inductor.config
import torch.distributed as dist

words = json.loads(sys.stdin.read())
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2))
torch.cuda.is_initialized = lambda: True  # no GPU here: all that is asked of it
# The imports are real, what is imported is empty. torch itself would trip over such a triton.
sys.path.insert(0, words["folder"])
import causal_conv1d  # noqa: E402, F401
import mamba_ssm  # noqa: E402, F401
import transformer_engine  # noqa: E402, F401
import triton  # noqa: E402, F401

threads = torch.get_num_threads()
os.environ.update(words["variables"])

import bitstep  # noqa: E402
from bitstep.contract import switches  # noqa: E402
from bitstep.contract.rules import RULES  # noqa: E402
from bitstep.contract.standing import standings  # noqa: E402

for name, value in words["settings"].items():
    switches.write(name, value)
before = dict(os.environ)
settings = {rule.name: switches.read(rule.name) for rule in RULES if rule.kind == "torch"}
error = ""
try:
    bitstep.deterministic(words["threads"])
except bitstep.BitstepError as caught:
    error = str(caught)
    assert dict(os.environ) == before
    assert settings == {name: switches.read(name) for name in settings}
said = {each.rule.name: [each.verdict, each.said] for each in standings(RULES, words["threads"])}
print(json.dumps({"said": said, "error": error, "threads": [threads, torch.get_num_threads()]}))
dist.destroy_process_group()
