"""GPUs and host: what there is, what it reads, which of it a sweep may use, and how trainings share it."""
