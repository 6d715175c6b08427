"""The command line and its output: flags, the frame of a command, lines, tables and plots.

Gives `flags`, `command`, `console` and a view for each kind of result. Imports `records`, `planning`, `search` and
`config`; never Ray, MLflow or a framework.
"""
