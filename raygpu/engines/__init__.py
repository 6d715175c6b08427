"""The only door to Ray: where trainings are placed, told and stopped."""
