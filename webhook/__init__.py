"""hami-quota: GPU quotas that hold on clusters which share GPUs with HAMi.

The layers of this package, bottom up, are the import contract in pyproject.toml; CONTRIBUTING.md maps
each of them to the rule it owns.
"""

__version__ = "0.1.0"
