"""Whole-run configurations, as TOML."""
