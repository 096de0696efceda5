"""The operator: observes training runs, judges them, and steers them through a journal."""
