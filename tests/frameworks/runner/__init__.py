"""The parts of the driver. Uses only the standard library."""
