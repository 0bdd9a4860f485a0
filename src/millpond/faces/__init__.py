"""What people and programs see: the command line, and later the API and the page."""
