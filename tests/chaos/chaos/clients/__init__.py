"""What users do: each client is a thread that takes one turn after the other, with a random sequence of its own."""
