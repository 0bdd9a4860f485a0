"""Faults on purpose: the fault lane server and what is run against it."""
