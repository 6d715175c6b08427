"""Functions and scripts of a person's own as trainings."""
