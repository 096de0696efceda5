"""`trimtab …` and `kubectl trimtab …`: what people type."""
