"""A local page over the tables of runs: experiences, pairs, tokens, evaluations, and decisions by hand."""
