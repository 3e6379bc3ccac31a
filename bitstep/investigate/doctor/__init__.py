"""The doctor: what of a machine or a program varies, could vary, or is missed, with the fix.

1. `machine` looks at this machine and environment, in a fresh process (`look`).
2. `program` runs the first two steps of a program twice, recorded: `calls` and `operations` ask the
   catalog about each operation, `conditions` whether its case is there, `recordings` and `lints`
   what they show by themselves.
3. `streams` runs them again with what should not matter changed: `loaders`, `generators`,
   `settings`; and asks what its checkpoint would miss: `saved`, `effects`, `checkpoint`, `resumed`,
   and for our own recipes `engine`.
4. All of it are `finding`s, ranked; a `diagnosis` holds them, and `report.doctor` shows it.
"""
