"""`pairwright doctor`: what will not work, before it is tried."""
