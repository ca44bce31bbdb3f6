"""Recurrent caches: ``contract`` documents their batch contract, the other modules repair it."""
