"""Recurrent caches: ``contract`` states their batch contract, the other modules repair it."""
