"""Background work of the service: job queue, workers, base models and deployments."""
