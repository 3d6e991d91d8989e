"""`pairwright doctor`: checks the requirements of a run before it starts."""
