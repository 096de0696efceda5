"""The parts of `trimtab demo`."""
