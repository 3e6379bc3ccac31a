"""`python -m bitstep` is the command `bitstep`."""

from bitstep.cli import main

main()
