"""OpenAI's files and fine-tuning API, on the same queue and store as the routes of NeMo Customizer."""
