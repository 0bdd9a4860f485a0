"""What makes jobs move: owners, and the drainer that performs journeys."""
