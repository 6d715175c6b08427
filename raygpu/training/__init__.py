"""Trainings, an epoch at a time. Nothing here knows Ray or MLflow."""
