"""Searches over settings: spaces, trials, what they cost together, and what happened so far."""
