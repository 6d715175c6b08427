"""Ray itself: a local one or a cluster that runs already, its nodes and GPUs, jobs, metrics and MPS daemons."""
