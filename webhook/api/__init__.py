"""The wire: what Kubernetes sends, decoded, checked and frozen. No policy lives here.

Every type is a projection that names only the fields the rules read; everything else in an object is skipped
while it is parsed.
"""
