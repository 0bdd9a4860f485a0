"""The spend book: reservations before a call, charges after it, in a database of its own that several queues share."""
