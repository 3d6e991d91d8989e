"""Messages and traces as agent frameworks and model gateways save them."""
