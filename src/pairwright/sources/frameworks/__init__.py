"""Messages and traces saved by agent frameworks and model gateways."""
