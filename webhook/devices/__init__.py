"""The device families that HAMi shares: one module a family, and a registry that builds them from HAMi's own file.

Families do not know each other. A new one touches its own module, `registry` and its tests.
"""
