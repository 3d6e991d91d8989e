"""Application and routes of the service: entities, jobs, deployments, pagination."""
