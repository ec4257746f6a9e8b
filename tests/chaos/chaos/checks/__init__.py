"""One guarantee per file. A check adds violations, and removes what it found from the ledger, so that it is reported once."""
