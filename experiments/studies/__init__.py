"""Questions that a sweep answers, with its figures."""
