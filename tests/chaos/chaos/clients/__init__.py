"""What users do: each client is a thread that takes one turn after the other, with its own random sequence."""
