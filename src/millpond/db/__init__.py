"""One database: connection, writer, turnstile, migrations."""
