"""What a person types and sees: flags, the frame of a command, its lines, tables and plots.

Gives `arguments`, `command`, `console` and a view for each kind of result. Imports `records`, `planning`, `search` and
`config`; never Ray, MLflow or a framework.
"""
