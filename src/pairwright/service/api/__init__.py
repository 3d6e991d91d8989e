"""The routes of the service, their requests and errors."""
