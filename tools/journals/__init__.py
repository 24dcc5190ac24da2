"""What a maintainer asks of journals: do they replay, and what caused a line."""
