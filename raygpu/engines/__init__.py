"""The only door to Ray.

`cluster` starts or joins Ray and reaches its nodes; `tune` runs a sweep on Ray Tune; `train` runs a production training
on Ray Train; `profiling` measures trainings and devices. Imports `training`, `devices`, `records`, `planning`,
`search` and `config`; never MLflow or `cli`.
"""
