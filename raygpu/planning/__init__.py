"""The plan of a sweep: how trials share the GPUs, decided by pure functions from numbers. A plan is data.

Gives GPU shares and their allocation, the cost model that compares ways to share a GPU, measured profiles with their
confidence, array tiles, batches and their split. Imports `search` and `config`; never torch, TensorFlow, Ray, MLflow or
anything that renders (`cli` turns a plan into lines).
"""
