"""What must be fixed for two runs to be comparable, collected with each attempt and compared.

`manifest` holds, writes, reads and compares; `classes` says which keys must match, which can change
bits, and why; `versions` knows what older collections had; `validate` trusts no file. `collect`
looks at this process, each part in a file of its name, `placement` at where all of them were, and
`secrets` keeps out what is nobody's business.

`rules` says what settings may be, `standing` how they are, and `enforce` holds a process to them.
`catalog` knows the operations whose bits may vary, `survey` reads reports of what was measured.
`summation` is the order in which a process group sums, `groups` where it is kept. None imports
torch when it is imported.
"""
