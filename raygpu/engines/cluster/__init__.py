"""Ray itself: a local Ray or a running cluster, with its nodes and GPUs, jobs, metrics and MPS daemons."""
