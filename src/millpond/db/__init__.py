"""One database: connection, writer, turnstile, migrations, named statements. It knows nothing of jobs."""
