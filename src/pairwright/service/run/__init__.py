"""Queue, workers and deployments of the service."""
