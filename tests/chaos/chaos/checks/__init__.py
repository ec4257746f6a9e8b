"""One promise per file. A check adds to the violations, and takes what it found broken out of the ledger so that it is told once."""
