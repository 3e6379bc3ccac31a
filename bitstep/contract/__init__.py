"""What must be fixed for two runs to be comparable, collected with each attempt and compared.

`manifest` holds, writes, reads and compares; `classes` says which keys must match and why;
`validate` trusts no file; `collect` looks at this process and `program` at its code. None imports
torch when it is imported.
"""
