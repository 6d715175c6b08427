"""Steps that commands share, in the order of a run: validation, Ray's start-up, the plan, the summary, the registry.

A command's module calls them one after the other. Imports everything below: `engines`, `training`, `tracking`,
`devices` and `cli`.
"""
