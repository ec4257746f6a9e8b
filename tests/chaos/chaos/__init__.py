"""The chaos suite: faults by a seeded schedule, clients through the official SDK, and checks of what was acknowledged.

options   → what was asked for
schedule  → which fault comes when (pure; depends on the seed only)
platform  → the server with its disk, bucket and database, made and removed by the suite
clients/  → what users do all the time; they note in the ledger what was acknowledged
faults/   → one kind of fault per file
checks/   → one promise per file
campaign  → the loop: fault, recovery, checks
"""
