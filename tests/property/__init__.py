"""Laws, one test each. A package, since they concern modules that have unit tests of the same name."""
