"""Executors of work: each makes one request an attempt and tells what it saw of it."""
