"""Session logs of coding assistants: one session per file."""
