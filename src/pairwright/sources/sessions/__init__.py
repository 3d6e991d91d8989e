"""Session logs of coding assistants: one session a file."""
