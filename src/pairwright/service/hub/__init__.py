"""The part of the service that speaks the Hub's protocol."""
