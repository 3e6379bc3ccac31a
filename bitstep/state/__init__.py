"""Every stream that can change the next step of a training run, listed once.

`streams` names them and holds them live; `roots` turns them into 64 bits; `keys` is where every
random draw starts; `processes` is how the processes of one run agree, and `together` how they fail
together. Import the modules by name:
only `processes` loads torch.
"""
