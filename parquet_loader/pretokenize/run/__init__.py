"""Runs: one process, several ranks, Ray."""
