"""Scorers give runs a score: criteria without a model, functions and commands of the user, judge questions.

A scorer is called as `score(run) -> float | dict[str, float] | None`; the run is an `Experience`. Higher is better.
"""
