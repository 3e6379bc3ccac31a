"""The engine: a recipe becomes a run whose bits do not depend on how many processes do the work."""
