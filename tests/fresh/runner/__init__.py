"""The parts of the suite. Uses only the standard library."""
