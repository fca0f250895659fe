"""`python -m batchline`."""

from batchline.cli import main

main()
