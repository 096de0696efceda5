"""The training program: reference loop, optimizer, checkpoints and the session that speaks to the operator."""
