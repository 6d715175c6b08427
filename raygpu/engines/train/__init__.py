"""Production training on Ray Train: its start, its workers and its checkpoints."""
