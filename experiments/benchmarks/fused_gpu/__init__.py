"""Training throughput on one GPU: arrays of models beside one training alone, and beside packed processes."""
