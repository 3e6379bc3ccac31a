"""Start processes and end them: environment, torchrun, signals, exit codes. Only this room does.

1. `environment` is set before torch is imported, `worker` settles torch after it.
2. `torchrun` starts the workers of an attempt and waits; `parent` ends those left behind.
3. `signals` turns SIGTERM, SIGUSR1 and Ctrl-C into a question that the loop asks at each step.
4. `pretrain` joins them; `arm` starts whole commands anew, for proofs and measurements.
5. `record` and `deterministic` run somebody else's program: recorded, and held to the rules.
"""
