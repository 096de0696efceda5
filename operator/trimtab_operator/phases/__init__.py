"""What each phase of a run decides: one module per phase or pair of phases, each pure, each asked by `remediation`."""
