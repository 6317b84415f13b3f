"""The command line and what it runs. The core never imports it."""
