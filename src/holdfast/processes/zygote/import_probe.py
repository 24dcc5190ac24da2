"""A module that nobody needs: imported once, to see that imports are seen."""
