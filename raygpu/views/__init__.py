"""The lines, tables and plots that a person sees."""
