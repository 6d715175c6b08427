"""The steps of a run, in order, as the commands call them.

`validation` (without the user's code), `user_code` (with it), `ray_startup`, `trial_groups` and `planner` of a sweep,
`summary`; of a training `promotion` before and `registration` after; of a submitted command `submission`.
Imports everything below.
"""
