"""The agents of the elastic API, and what belongs to them."""
