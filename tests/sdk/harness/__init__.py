"""What the driver is made of. Standard library only."""
