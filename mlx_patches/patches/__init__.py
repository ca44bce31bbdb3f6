"""The built-in patches, grouped by what they repair: caches, masks, positions, servers, hosts."""
