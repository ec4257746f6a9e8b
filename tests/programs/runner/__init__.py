"""The parts of the suite. `page` and `outcome` use only the standard library; the others run with E2B's SDK."""
