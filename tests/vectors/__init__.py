"""Answers of the real programs as data, and one test module a topic; a package, since topics share modules' names."""
