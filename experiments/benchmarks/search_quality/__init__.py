"""Quality of a search at equal wall time: raygpu beside Ray Tune by hand, Optuna and Keras Tuner.

    python -m experiments.benchmarks.search_quality --seconds 60 --seeds 7

A problem has data that are cut anew for each seed into training, validation and test data. A searcher sees validation
scores alone; beside each of them it notes the test error, so that the test error of the best model that it knew is
told for every moment. `regret` has the rules.
"""
