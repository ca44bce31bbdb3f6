"""The tests of single patches, a file for each folder of patches, with the patches' mutants."""
