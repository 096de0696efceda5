"""What trainer and operator say to each other; pure data, no I/O, imports neither side."""
