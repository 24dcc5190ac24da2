"""The agents of the elastic API."""
