"""The queue's verbs, by theme, and the tables they move."""
