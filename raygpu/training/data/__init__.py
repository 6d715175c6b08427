"""Samples that are read when they are needed: data sets larger than memory, and the cache of what was decoded."""
