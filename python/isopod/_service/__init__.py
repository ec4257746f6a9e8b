"""The sandbox service's records and requests."""
