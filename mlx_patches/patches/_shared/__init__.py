"""What several patches share: rows of caches, records of rows, calls row by row, model parts."""
