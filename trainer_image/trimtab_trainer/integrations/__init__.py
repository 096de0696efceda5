"""Training loops of others, guarded: what a run does at a step boundary happens behind their data and their hooks."""
