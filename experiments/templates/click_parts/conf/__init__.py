"""Configuration files: hydra.searchpath=[pkg://click_parts.conf]."""
