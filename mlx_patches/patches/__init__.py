"""One module for each defect, grouped by the distribution that has it."""
