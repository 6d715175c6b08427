"""The only door to MLflow: the tree of runs, and the thread that writes them."""
