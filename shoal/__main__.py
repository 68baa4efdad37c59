"""`python -m shoal` is the command `shoal`."""

from shoal.command.cli import main

main()
